import type { SandboxDataPlane } from "@cloche/sdk";
import { bodyText } from "./body-text.ts";
import { E2bError } from "../e2b-error.ts";

/** A line of the sandbox's `/etc/passwd`. */
export interface Account {
  name: string;
  uid: string;
  gid: string;
  home: string;
}

const defaultUser = "user";
const fallbackUser = "root";
const passwdBytes = 262_144;
const heldAccounts = 16;
const heldLineBytes = 1_024;

/**
 * The Unix users of one sandbox, each read when it is first named. Keeps only those, because the sandbox decides how
 * large its file is, and all teams share this process.
 */
export class Accounts {
  readonly #plane: SandboxDataPlane;
  readonly #known = new Map<string, Account>();

  constructor(plane: SandboxDataPlane) {
    this.#plane = plane;
  }

  /** An empty name means E2B's default `user`, or root if the sandbox has no such user. */
  async find(name: string): Promise<Account> {
    const wanted = name === "" ? defaultUser : name;
    const known = this.#known.get(wanted);
    if (known !== undefined) return known;
    const text = await bodyText(this.#plane, "/etc/passwd", passwdBytes);
    const account = accountIn(text, wanted) ?? (name === "" ? accountIn(text, fallbackUser) : undefined);
    if (account !== undefined) {
      if (this.#known.size >= heldAccounts) this.#known.clear();
      this.#known.set(wanted, account);
      return account;
    }
    if (name === "") return { name: fallbackUser, uid: "0", gid: "0", home: "/root" };
    throw new E2bError(
      "unauthenticated",
      `error looking up user '${name.slice(0, 100)}': there is no such user in the sandbox`,
    );
  }
}

/** Users of the sandbox can write this file: its content is used only as names and paths within the same sandbox. */
function accountIn(text: string, wanted: string): Account | undefined {
  const at = text.startsWith(`${wanted}:`) ? 0 : text.indexOf(`\n${wanted}:`) + 1;
  if (at === 0 && !text.startsWith(`${wanted}:`)) return undefined;
  // A copy: a part of a text keeps the whole text in memory.
  const line =
    Buffer.from(text.slice(at, at + heldLineBytes))
      .toString()
      .split("\n", 1)[0] ?? "";
  const [, name = "", uid = "", gid = "", home = ""] =
    /^([^:]+):[^:]*:(\d+):(\d+):[^:]*:(\/[^:]*):/.exec(line) ?? [];
  return name === "" ? undefined : { name, uid, gid, home };
}
