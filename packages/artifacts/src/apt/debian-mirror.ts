/** Finds this computer's Debian mirror in its apt sources (both formats). Never changes them. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";

export const debianSuite = "bookworm";
export const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
export const publicMirror = "http://deb.debian.org/debian";
export const publicSecurityMirror = "http://deb.debian.org/debian-security";

export interface AptSource {
  readonly uri: string;
  readonly suite: string;
}

export interface DebianMirrors {
  /** Serves `bookworm`, `bookworm-updates` and `bookworm-backports`. */
  readonly main: string;
  readonly security: string;
}

/** The computer's own mirrors for bookworm; the public ones if it has none (another release or distribution). */
export async function debianMirrors(aptDir = "/etc/apt"): Promise<DebianMirrors> {
  const texts = [await read(join(aptDir, "sources.list"))];
  for (const name of await readdir(join(aptDir, "sources.list.d")).catch(() => []))
    if (/\.(list|sources)$/.test(name)) texts.push(await read(join(aptDir, "sources.list.d", name)));
  return chooseMirrors(texts.flatMap(parseAptSources));
}

export function chooseMirrors(sources: readonly AptSource[]): DebianMirrors {
  const of = (suite: string) => sources.find((source) => source.suite === suite)?.uri;
  return {
    main: of(debianSuite) ?? publicMirror,
    security: of(`${debianSuite}-security`) ?? publicSecurityMirror,
  };
}

/** Binary (`deb`) http and https sources of one file, in the one-line or the deb822 format. */
export function parseAptSources(text: string): AptSource[] {
  return /^Types:/im.test(text) ? parseDeb822(text) : parseOneLine(text);
}

function parseOneLine(text: string): AptSource[] {
  const sources: AptSource[] = [];
  for (const line of text.split("\n")) {
    const match = /^\s*deb\s+(?:\[[^\]]*\]\s+)?(https?:\/\/\S+)\s+(\S+)/.exec(line);
    if (match?.[1] && match[2]) sources.push({ uri: trimSlash(match[1]), suite: match[2] });
  }
  return sources;
}

function parseDeb822(text: string): AptSource[] {
  const sources: AptSource[] = [];
  const withoutComments = text.replace(/^#.*\n?/gm, "");
  for (const stanza of withoutComments.split(/\n\s*\n/)) {
    const field = (name: string) =>
      new RegExp(`^${name}:[ \\t]*((?:.*)(?:\\n[ \\t]+.*)*)`, "im").exec(stanza)?.[1]?.trim().split(/\s+/) ??
      [];
    if (!field("Types").includes("deb") || field("Enabled")[0] === "no") continue;
    for (const uri of field("URIs"))
      if (/^https?:\/\//.test(uri))
        for (const suite of field("Suites")) sources.push({ uri: trimSlash(uri), suite });
  }
  return sources;
}

const trimSlash = (uri: string) => uri.replace(/\/+$/, "");
const read = (path: string) => readFile(path, "utf8").catch(() => "");
