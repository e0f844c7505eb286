/**
 * The agents' roots that memory images need, as one file in storage each. A memory is restored only with the root that its agent was
 * started from, and a host that joined after an upgrade has no root of an earlier release.
 *
 *   root in a cache ──tar──▶ packs, once for each content ◀──named by── images/<key>/agent-root ──▶ root in another host's cache
 *
 * Owns a folder on the pool with tars; the roots are the cache's (artifacts/store.ts). A fetched root has a kind of its own in the
 * cache, so that no start of this host takes it for a root that it built.
 */
import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { AGENT_ROOT_FETCHED } from "../artifacts/agent-root.ts";
import { buildBeside, isPresent, withKindLock } from "../artifacts/store.ts";
import { run } from "../sys/run.ts";

/** Equal roots give equal tars. With whole times: gVisor may compare those of files that a memory has open. */
const TAR = [
  "--format=posix",
  "--pax-option=exthdr.name=%d/%f,delete=atime,delete=ctime",
  "--sort=name",
  "--numeric-owner",
];

export class AgentRoots {
  readonly #dir: string;
  readonly #tars = new Map<string, Promise<string>>();
  #emptied: Promise<void> | undefined;

  constructor(dir: string) {
    this.#dir = dir;
  }

  /** Path of the root's tar on the pool. Roots never change. */
  tarOf(root: string): Promise<string> {
    const known = this.#tars.get(root);
    if (known !== undefined) return known;
    const made = this.#pack(root);
    this.#tars.set(root, made);
    made.catch(() => this.#tars.delete(root));
    return made;
  }

  /** Puts a root into the cache as `root`, unless it is there. `fetch` writes its tar to the given path. */
  async place(root: string, fetch: (tar: string) => Promise<void>): Promise<void> {
    const cache = dirname(root);
    await withKindLock(
      cache,
      AGENT_ROOT_FETCHED,
      () => undefined,
      async () => {
        if (await isPresent(root)) return;
        await buildBeside(cache, AGENT_ROOT_FETCHED, async (dir) => {
          const tar = join(dir, ".tar");
          await fetch(tar);
          await run(["tar", "-C", dir, "-xpf", tar]);
          await rm(tar);
          return basename(root).slice(AGENT_ROOT_FETCHED.length + 1);
        });
      },
    );
  }

  /** Without the root's own folder, whose time tells when it was used last. */
  async #pack(root: string): Promise<string> {
    this.#emptied ??= rm(this.#dir, { recursive: true, force: true });
    await this.#emptied;
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    const tar = join(this.#dir, `${basename(root)}.tar`);
    await run(["tar", ...TAR, "-C", root, "-cf", `${tar}.new`, ...(await readdir(root)).toSorted()]);
    await rename(`${tar}.new`, tar);
    return tar;
  }
}
