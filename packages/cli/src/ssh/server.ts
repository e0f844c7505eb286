import type { Sandbox, SandboxProcess } from "@cloche/sdk";
import { NotFoundError } from "../exit-codes.ts";

/** What a server of one connection is given. */
export interface ServerKeys {
  /** Private, as `ssh-keygen` writes it. */
  hostKey: string;
  /** The one public key that it lets in: a line of `authorized_keys`. */
  clientKey: string;
}

/** How long the end of a session is in `cloche ps -a`, with what sshd said of it. */
const keepSeconds = 300;
const acceptSeconds = 60;

/**
 * Runs in the sandbox, as root: tells a port of the loopback, takes one connection and hands it to `sshd -i`. The keys and the
 * settings lie in files without names, which end with this program however it ends, so no session leaves anything behind. What
 * an exec finds in its environment a session finds too. Perl is part of every Debian; Python is the user's to remove.
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

/** Starts a server for one connection in the sandbox; answers the port of the sandbox's loopback at which it waits. */
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
  return { port: await toldPort(process, sandbox, signal) };
}

async function toldPort(process: SandboxProcess, sandbox: Sandbox, signal: AbortSignal): Promise<number> {
  const told = { stdout: "", stderr: "" };
  for await (const event of process.events({ signal })) {
    if (event.type === "stdout" || event.type === "stderr")
      told[event.type] += new TextDecoder().decode(event.data);
    const port = /^(\d+)\n/.exec(told.stdout)?.[1];
    if (port !== undefined) return Number(port);
    if (event.type === "exit") break;
  }
  const why = told.stderr.trim() || "it ended without a word";
  throw new NotFoundError(`no SSH server could be started in ${sandbox.info.name || sandbox.id}: ${why}`);
}
