import type { Sandbox, SandboxProcess } from "@cloche/sdk";
import { NotFoundError } from "../exit-codes.ts";

/** The keys of a server for one connection. */
export interface ServerKeys {
  /** Private key, in the format of `ssh-keygen`. */
  hostKey: string;
  /** The only accepted public key: a line of `authorized_keys`. */
  clientKey: string;
}

/** How long an ended session stays in `cloche ps -a`, with sshd's output. */
const keepSeconds = 300;
const acceptSeconds = 60;

/**
 * Runs in the sandbox as root: prints a port of the loopback, accepts one connection and passes it to `sshd -i`. Keys and settings are in
 * files without names, which vanish when this program ends in any way, so a session leaves nothing behind. A session has the same
 * environment as an exec. Written in Perl, which every Debian has; users may remove Python.
 */
const listener = `
use strict; use Socket; use Fcntl;
-x "/usr/sbin/sshd" or die "the sandbox has no OpenSSH server; install openssh-server in it\\n";
sub nameless {
  my ($text) = @_;
  my $path = "/run/.cloche-ssh-$$";
  sysopen(my $file, $path, O_RDWR | O_CREAT | O_EXCL, 0600) or die "$path: $!\\n";
  unlink $path;
  syswrite($file, $text) == length $text or die "$path: $!\\n";
  return $file;
}
my $host_key = nameless(delete $ENV{CLOCHE_SSH_HOST_KEY});
my $client_key = delete $ENV{CLOCHE_SSH_CLIENT_KEY};
my @variables;
for my $name (sort keys %ENV) {
  next if $name =~ /^(HOME|USER|LOGNAME|SHELL|TERM|PWD)$/ or "$name$ENV{$name}" =~ /[\\n\\r]/;
  (my $pair = "$name=$ENV{$name}") =~ s/([\\\\"])/\\\\$1/g;
  push @variables, "\\"$pair\\"";
}
my $settings = nameless(join "\\n",
  "HostKey /proc/$$/fd/" . fileno($host_key),
  "AuthorizedKeysFile none",
  "AuthorizedKeysCommand /bin/echo $client_key",
  "AuthorizedKeysCommandUser nobody",
  "AuthenticationMethods publickey",
  "PasswordAuthentication no",
  "KbdInteractiveAuthentication no",
  "LoginGraceTime 20",
  "ClientAliveInterval 15",
  "ClientAliveCountMax 2",
  "UsePAM yes",
  "PrintMotd no",
  "PrintLastLog no",
  "PidFile none",
  "AcceptEnv COLORTERM GIT_PROTOCOL",
  "SetEnv @variables",
  "Subsystem sftp internal-sftp",
  "");
mkdir "/run/sshd", 0755;
socket(my $listener, PF_INET, SOCK_STREAM, 0) or die "socket: $!\\n";
bind($listener, sockaddr_in(0, INADDR_LOOPBACK)) or die "bind: $!\\n";
listen($listener, 1) or die "listen: $!\\n";
$| = 1;
print((sockaddr_in(getsockname($listener)))[0], "\\n");
alarm ${acceptSeconds};
accept(my $client, $listener) or die "accept: $!\\n";
alarm 0;
close $listener;
my $config = "/proc/$$/fd/" . fileno($settings);
my $server = fork // die "fork: $!\\n";
if ($server == 0) {
  open(STDIN, "<&", $client) and open(STDOUT, ">&", $client) or die "dup: $!\\n";
  close $client;
  exec "/usr/sbin/sshd", "-i", "-e", "-f", $config;
  die "sshd: $!\\n";
}
close $client;
waitpid $server, 0;
exit($? == 0 ? 0 : 1);
`;

/** Starts a server for one connection in the sandbox; answers its port on the sandbox's loopback. */
export async function startServer(
  sandbox: Sandbox,
  keys: ServerKeys,
  signal: AbortSignal,
): Promise<{ port: number }> {
  const process = await sandbox.processes.start(["/usr/bin/perl", "-e", listener], {
    env: { CLOCHE_SSH_HOST_KEY: keys.hostKey, CLOCHE_SSH_CLIENT_KEY: keys.clientKey },
    tag: "ssh",
    keep_seconds: keepSeconds,
    signal,
  });
  return { port: await reportedPort(process, sandbox, signal) };
}

async function reportedPort(process: SandboxProcess, sandbox: Sandbox, signal: AbortSignal): Promise<number> {
  const output = { stdout: "", stderr: "" };
  for await (const event of process.events({ signal })) {
    if (event.type === "stdout" || event.type === "stderr")
      output[event.type] += new TextDecoder().decode(event.data);
    const port = /^(\d+)\n/.exec(output.stdout)?.[1];
    if (port !== undefined) return Number(port);
    if (event.type === "exit") break;
  }
  const why = output.stderr.trim() || "it ended without a word";
  throw new NotFoundError(`no SSH server could be started in ${sandbox.info.name || sandbox.id}: ${why}`);
}
