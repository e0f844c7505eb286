/**
 * Runs one command of the computer (mount, mkfs, apt, ip, nft) and captures its output.
 * Arguments are passed as a list, never through a shell. Nothing is inherited: stdin is empty or `input`.
 */
import { execFile } from "node:child_process";

export interface RunOptions {
  readonly cwd?: string;
  /** Added to our environment; LC_ALL=C is always set, so that output can be parsed. */
  readonly env?: Readonly<Record<string, string>>;
  /** Passes only PATH of our environment, so that users' settings do not change the result. */
  readonly onlyEnv?: boolean;
  /** Written to the command's stdin, which is then closed. */
  readonly input?: string;
  /** The command and its children are killed after this many milliseconds. Default 60,000. */
  readonly deadlineMs?: number;
  /** Called with each line of stdout and stderr as it comes: for progress of long commands. */
  readonly onLine?: (line: string) => void;
}

export interface RunResult {
  readonly stdout: string;
  readonly stderr: string;
}

/**
 * Prefix for a long command that starts others or mounts. Its whole tree is killed when it or our process dies, and it has its own
 * mounts, so that an interrupted build leaves nothing.
 */
export const diesWithUs = [
  "setpriv",
  "--pdeathsig=KILL",
  "unshare",
  "--mount",
  "--propagation=slave",
  "--pid",
  "--fork",
  "--kill-child=KILL",
  "--mount-proc",
] as const;

/** Our PATH and the folders of system programs: after a plain `su` a PATH has no sbin. */
export const systemPath = [process.env.PATH, "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]
  .filter((dir) => dir)
  .join(":");

const defaultDeadlineMs = 60_000;
const maxOutputBytes = 64 * 1024 * 1024;
const stderrTailChars = 2_000;

/** A command that could not be started, failed, or ran past its deadline. The message carries the end of its stderr. */
export class CommandError extends Error {
  override readonly name = "CommandError";
  readonly argv: readonly string[];
  /** Exit code; 127 when the program is missing, -1 when it was killed. */
  readonly exitCode: number;
  readonly stderr: string;

  constructor(argv: readonly string[], exitCode: number, why: string, stderr: string) {
    const tail = stderr.trim().slice(-stderrTailChars);
    super(`${argv.slice(0, 6).join(" ")}${argv.length > 6 ? " …" : ""}: ${why}${tail ? `: ${tail}` : ""}`);
    this.argv = argv;
    this.exitCode = exitCode;
    this.stderr = stderr;
  }
}

/** Runs `argv` and resolves when it exits 0; otherwise throws CommandError. */
export function run(argv: readonly [string, ...string[]], options: RunOptions = {}): Promise<RunResult> {
  const [file, ...args] = argv;
  const deadlineMs = options.deadlineMs ?? defaultDeadlineMs;
  return new Promise((resolve, reject) => {
    const child = execFile(
      file,
      args,
      {
        cwd: options.cwd,
        env: { ...(options.onlyEnv ? {} : process.env), PATH: systemPath, LC_ALL: "C", ...options.env },
        encoding: "utf8",
        maxBuffer: maxOutputBytes,
        timeout: deadlineMs,
        killSignal: "SIGKILL",
      },
      (error, stdout, stderr) => {
        if (!error) return resolve({ stdout, stderr });
        // execFile never reports ETIMEDOUT: a killed child exceeded its deadline or its output limit.
        if (error.code === "ENOENT")
          return reject(new CommandError(argv, 127, "no such program on PATH", stderr));
        if (error.code === "ERR_CHILD_PROCESS_STDIO_MAXBUFFER")
          return reject(new CommandError(argv, -1, `wrote over ${maxOutputBytes} bytes`, stderr));
        if (error.killed)
          return reject(new CommandError(argv, -1, `not finished after ${deadlineMs} ms, killed`, stderr));
        const code = typeof error.code === "number" ? error.code : -1;
        const why = error.signal ? `killed by ${error.signal}` : `exit code ${error.code}`;
        reject(new CommandError(argv, code, why, stderr));
      },
    );
    if (options.onLine) {
      eachLine(child.stdout, options.onLine);
      eachLine(child.stderr, options.onLine);
    }
    // A program may exit without reading its input.
    child.stdin?.on("error", () => {});
    child.stdin?.end(options.input ?? "");
  });
}

function eachLine(stream: NodeJS.ReadableStream | null, onLine: (line: string) => void): void {
  let rest = "";
  stream?.on("data", (chunk: string | Buffer) => {
    const lines = (rest + chunk.toString()).split(/[\n\r]/);
    rest = lines.pop() ?? "";
    for (const line of lines) if (line.trim()) onLine(line.trim());
  });
}
