/**
 * A step of official releases that a plain build of the module lacks: seccomp programs compiled ahead. The rules come from the
 * module; only its list of compiled programs, which is empty, is replaced (native/gvisor/seccomp.go).
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { diesWithUs, run } from "@cloche/base/run";
import type { Go } from "./go-tools.ts";

const generatorSource = fileURLToPath(new URL("../../../../native/gvisor/seccomp.go", import.meta.url));
/** They compile 608 programs in half a minute; the generator sees them with a choice put in, runsc as they are. */
const lists = [
  "runsc/boot/filter/config/config_precompiled.go",
  "runsc/fsgofer/filter/config/config_precompiled.go",
] as const;
const before = "\tprograms := make([]precompiledseccomp.Program, len(opts))\n";
const choice = `	wanted := opts[:0]
	for _, opt := range opts {
		if Wanted(opt.ConfigKey()) {
			wanted = append(wanted, opt)
		}
	}
	opts = wanted
`;
const declaration = `
// Wanted says of a configuration whether its program is compiled.
var Wanted func(key string) bool
`;

export const generatorText = (): Promise<string> => readFile(generatorSource, "utf8");

/** Writes the programs into `source`, a writable copy of the module. */
export async function compileSeccomp(
  go: Go,
  source: string,
  work: string,
  onLine: (line: string) => void,
): Promise<void> {
  const folder = join(source, "tools/cloche-seccomp");
  const replace: Record<string, string> = { [join(folder, "main.go")]: generatorSource };
  for (const [index, list] of lists.entries()) {
    const file = join(work, `list-${index}.go`);
    await writeFile(file, withChoice(list, await readFile(join(source, list), "utf8")));
    replace[join(source, list)] = file;
  }
  const overlay = join(work, "overlay.json");
  await writeFile(overlay, JSON.stringify({ Replace: replace }));
  const generator = join(work, "generator");
  const options = ["-v", "-trimpath", "-buildvcs=false", `-overlay=${overlay}`];
  await go.run(["build", ...options, "-o", generator, folder], { cwd: source, onLine });
  // The generator must be the first process of a PID namespace.
  await run([...diesWithUs, generator], { cwd: source, onlyEnv: true });
}

/** The text of a list of configurations that asks `Wanted` about each. */
export function withChoice(path: string, text: string): string {
  const parts = text.split(before);
  if (parts.length !== 2)
    throw new Error(`${path} of gVisor is not as expected: the seccomp step has to follow it`);
  return `${parts[0]}${choice}${before}${parts[1]}${declaration}`;
}
