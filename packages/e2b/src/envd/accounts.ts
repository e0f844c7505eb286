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
const passwdBytes = 1_048_576;

/** The Unix users of one sandbox. Read once, and again for an unknown name. */
export class Accounts {
  readonly #plane: SandboxDataPlane;
  #known: Promise<Map<string, Account>> | undefined;

  constructor(plane: SandboxDataPlane) {
    this.#plane = plane;
  }

  /** An empty name means E2B's default `user`, or root if the sandbox has no such user. */
  async find(name: string): Promise<Account> {
    const wanted = name === "" ? defaultUser : name;
    let account = (await this.#accounts()).get(wanted);
    if (account === undefined && name !== "") {
      this.#known = undefined;
      account = (await this.#accounts()).get(wanted);
    }
    account ??= name === "" ? (await this.#accounts()).get(fallbackUser) : undefined;
    if (account !== undefined) return account;
    if (name === "") return { name: fallbackUser, uid: "0", gid: "0", home: "/root" };
    throw new E2bError(
      "unauthenticated",
      `error looking up user '${name.slice(0, 100)}': there is no such user in the sandbox`,
    );
  }

  #accounts(): Promise<Map<string, Account>> {
    this.#known ??= this.#read().catch((error: unknown) => {
      this.#known = undefined;
      throw error;
    });
    return this.#known;
  }

  /** Users of the sandbox can write this file: its content is used only as names and paths within the same sandbox. */
  async #read(): Promise<Map<string, Account>> {
    const text = await bodyText(this.#plane, "/etc/passwd", passwdBytes);
    const accounts = new Map<string, Account>();
    for (const line of text.split("\n")) {
      const [, name = "", uid = "", gid = "", home = ""] =
        /^([^:]+):[^:]*:(\d+):(\d+):[^:]*:(\/[^:]*):/.exec(line) ?? [];
      if (name !== "" && !accounts.has(name)) accounts.set(name, { name, uid, gid, home });
    }
    return accounts;
  }
}
