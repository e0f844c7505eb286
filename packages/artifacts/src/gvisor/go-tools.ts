/**
 * The Go that builds gVisor: the computer's own if it can fetch tool chains (from 1.21 on), otherwise Debian's, unpacked privately.
 * It only starts the pinned tool chain, which Go fetches as a module and checks against its checksum database, so the result has
 * the same bytes on every computer.
 *
 * A user's settings for Go (environment, `go env -w`) do not reach the build, except the sources of modules and the way to them:
 * a proxy, a checksum database, private certificates.
 */
import { access, constants } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { CommandError, diesWithUs, run, type RunResult, systemPath } from "@cloche/base/run";
import { debianSuite, debianMirrors } from "../apt/debian-mirror.ts";
import { debianSource } from "../apt/private-apt.ts";
import { unpackPrivateDebs } from "../apt/private-deb.ts";

/** The first Go that can fetch a tool chain. */
const fetchesToolchains = [1, 21] as const;
const debianGoPackage = { package: "golang-1.23-go", root: "usr/lib/go-1.23" } as const;
const goDeadlineMs = 20 * 60_000;
const outputLinesMax = 20;
const reportEveryPackages = 100;

/** Settings of the user's Go for the sources of modules. */
const sourceSettingNames = [
  "GOPROXY",
  "GOSUMDB",
  "GONOPROXY",
  "GONOSUMDB",
  "GOPRIVATE",
  "GOINSECURE",
  "GOAUTH",
] as const;
/** Environment variables for the way to these sources. */
const networkVariableNames =
  /^(https?_proxy|no_proxy|all_proxy|ssl_cert_(file|dir)|netrc|git_ssl_.*|git_config.*)$/i;

export interface GoOptions {
  readonly cwd: string;
  readonly onLine?: (line: string) => void;
}

export interface Go {
  /** Runs `go` with these words in the build's environment. A failure has the end of its stderr. */
  run(args: readonly string[], options: GoOptions): Promise<RunResult>;
}

export interface GoRequest {
  /** For example "go1.26.8". */
  readonly toolchain: string;
  /** Folder of everything that Go stores: modules, caches, temporary files, its own settings. */
  readonly work: string;
  /** Folders to search for `go`. Default: PATH and the system's folders. */
  readonly path?: string;
  /** Of one command. Default: 20 minutes. */
  readonly deadlineMs?: number;
  readonly detail: (text: string) => void;
}

export async function obtainGo(request: GoRequest): Promise<Go> {
  const { toolchain, work, path = systemPath, deadlineMs = goDeadlineMs, detail } = request;
  const program = (await ownGo(path, work)) ?? (await debianGo(work, detail));
  const environment = {
    ...networkVariables(process.env),
    ...(await sourceSettings(program, work, path)),
    ...ofBuild(work, path),
    GOTOOLCHAIN: toolchain,
  };
  return {
    run: (args, options) =>
      run([...diesWithUs, program, ...args], {
        ...options,
        env: environment,
        onlyEnv: true,
        deadlineMs,
      }).catch((error: unknown) => {
        throw error instanceof CommandError ? goFailure(args, error) : error;
      }),
  };
}

/** Go's messages, without the packages that `-v` names and without the command. */
function goFailure(args: readonly string[], error: CommandError): Error {
  const output = error.stderr.split("\n").filter((line) => line.trim() !== "" && !isPackage(line));
  if (output.length === 0) return error;
  const tail = output.slice(-outputLinesMax).join("\n");
  return new Error(`go ${args.slice(0, 2).join(" ")}: ${tail}`, { cause: error });
}

/** For lines of `go build -v`, which names each package that it compiles. */
export function packageCounter(detail: (text: string) => void): (line: string) => void {
  let packages = 0;
  return (line) => {
    if (!isPackage(line)) return;
    packages += 1;
    if (packages % reportEveryPackages === 0) detail(`${packages} packages are compiled`);
  };
}

const isPackage = (line: string): boolean => /^[\w.-]+(\/[\w.@-]+)*$/.test(line);

/** The computer's own `go`; undefined if there is none or it is too old to fetch tool chains. */
async function ownGo(path: string, cwd: string): Promise<string | undefined> {
  for (const folder of path.split(":")) {
    const program = join(folder, "go");
    if (!(await isExecutable(program))) continue;
    const output = await run([program, "version"], { cwd, env: { GOTOOLCHAIN: "local" } }).catch(
      () => undefined,
    );
    if (output !== undefined && canFetchToolchains(output.stdout)) return program;
  }
  return undefined;
}

/** `go version`: "go version go1.26.8 linux/amd64". A development version names no release and counts as too old. */
export function canFetchToolchains(output: string): boolean {
  const [, major, minor] = /^go version go(\d+)\.(\d+)/.exec(output) ?? [];
  if (major === undefined) return false;
  const [leastMajor, leastMinor] = fetchesToolchains;
  return Number(major) > leastMajor || (Number(major) === leastMajor && Number(minor) >= leastMinor);
}

async function debianGo(work: string, detail: (text: string) => void): Promise<string> {
  const suite = `${debianSuite}-backports`;
  detail(`no Go on this machine: fetching ${debianGoPackage.package} from ${suite}, for this build only`);
  const { main } = await debianMirrors();
  const into = join(work, "debian-go");
  await unpackPrivateDebs({
    sources: [debianSource(main, suite)],
    packages: [debianGoPackage.package],
    into,
  });
  return join(into, debianGoPackage.root, "bin/go");
}

/** Settings from the user's environment and `go env -w`. */
async function sourceSettings(program: string, cwd: string, path: string): Promise<Record<string, string>> {
  const { stdout } = await run([program, "env", "-json", ...sourceSettingNames], {
    cwd,
    env: { GOTOOLCHAIN: "local", PATH: path },
  });
  const settings = JSON.parse(stdout) as Record<string, string>;
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== ""));
}

export function networkVariables(all: NodeJS.ProcessEnv): Record<string, string> {
  return Object.fromEntries(
    Object.entries(all).flatMap(([name, value]) =>
      value !== undefined && networkVariableNames.test(name) ? [[name, value]] : [],
    ),
  );
}

function ofBuild(work: string, path: string): Record<string, string> {
  return {
    PATH: path,
    // Credentials of a private module proxy are in ~/.netrc.
    HOME: homedir(),
    XDG_CONFIG_HOME: join(work, "config"),
    XDG_CACHE_HOME: join(work, "cache"),
    GOENV: "off",
    GOFLAGS: "-modcacherw",
    GOWORK: "off",
    GO111MODULE: "on",
    GOPATH: join(work, "gopath"),
    GOMODCACHE: join(work, "modules"),
    GOCACHE: join(work, "cache/go-build"),
    GOTMPDIR: work,
    GOOS: "linux",
    GOARCH: process.arch === "arm64" ? "arm64" : "amd64",
    GOAMD64: "v1",
    GOARM64: "v8.0",
    GOEXPERIMENT: "",
    GOFIPS140: "off",
    GODEBUG: "",
    CGO_ENABLED: "0",
  };
}

function isExecutable(path: string): Promise<boolean> {
  return access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}
