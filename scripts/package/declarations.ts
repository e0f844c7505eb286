// One declaration file for an entry, out of what the compiler writes for each of its modules: whoever installs the package has no
// workspace to import from, and reads on one page what there is. Unreached declarations are left out.
import { readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";

export interface Declaration {
  name: string;
  /** As in `declare class`, `interface`; with its doc comment, without `export`. */
  text: string;
  /** Undefined: internal, but named by what is public. */
  exported: "value" | "type" | undefined;
}

interface Module {
  path: string;
  /** Declarations by name. */
  own: Map<string, string>;
  /** Local name to where it comes from. */
  imports: Map<string, { from: string; name: string }>;
  /** Exported name to the local one, or to another module's. */
  exports: Map<string, { from?: string; name: string; type: boolean }>;
  stars: string[];
}

/** `outside`: modules that the entry imports and that stay files of their own, by path without ending. */
export interface Entry {
  /** The compiler's file of the entry. */
  file: string;
  /** Turns an import into the path of its file; undefined: it is not ours, and stays. */
  resolve(specifier: string, importer: string): string | undefined;
  outside: ReadonlySet<string>;
}

const statementStart = /^(\/\*\*|import|export|declare|interface|type|class|enum|abstract)\b|^\/\*\*/;

/** The statements of a declaration file as the compiler formats it: each begins at a line's beginning, with its comment. */
function statements(text: string): string[] {
  const found: string[] = [];
  let comment = "";
  let current: string[] = [];
  const flush = (): void => {
    if (current.length > 0) found.push(comment + current.join("\n"));
    if (current.length > 0) comment = "";
    current = [];
  };
  let inComment = false;
  for (const line of text.split("\n")) {
    if (inComment || line.startsWith("/**")) {
      if (!inComment) flush();
      comment = inComment ? `${comment}${line}\n` : `${line}\n`;
      inComment = !line.includes("*/");
    } else if (statementStart.test(line)) {
      flush();
      current = [line];
    } else if (line !== "") current.push(line);
  }
  flush();
  return found;
}

const list = (names: string): { name: string; as: string; type: boolean }[] =>
  names
    .split(",")
    .map((one) => one.trim())
    .filter(Boolean)
    .map((one) => {
      const [, type, name = "", as] = /^(type )?(\w+)(?: as (\w+))?$/.exec(one) ?? [];
      if (name === "") throw new Error(`an import or export that is not understood: ${one}`);
      return { name, as: as ?? name, type: type !== undefined };
    });

function read(path: string): Module {
  const module: Module = { path, own: new Map(), imports: new Map(), exports: new Map(), stars: [] };
  for (const whole of statements(readFileSync(path, "utf8"))) {
    const statement = whole.replace(/^\/\*\*[^]*?\*\/\n/, "");
    const [, isType, names, from] =
      /^(?:import|export) (type )?\{([^}]*)\}(?: from "([^"]+)")?;$/.exec(statement) ?? [];
    const star = /^export (?:type )?\* from "([^"]+)";$/.exec(statement)?.[1];
    if (star !== undefined) module.stars.push(star);
    else if (names === undefined) readDeclaration(module, whole, statement);
    else
      for (const { name, as, type } of list(names)) {
        if (!statement.startsWith("export")) module.imports.set(as, { from: from ?? "", name });
        else module.exports.set(as, { ...(from && { from }), name, type: type || isType !== undefined });
      }
  }
  return module;
}

function readDeclaration(module: Module, whole: string, statement: string): void {
  const name =
    /^(?:export )?(?:declare )?(?:abstract )?(?:class|interface|type|const|function|enum) (\w+)/.exec(
      statement,
    )?.[1];
  if (name === undefined)
    throw new Error(`${module.path}: a statement that is not understood: ${statement.slice(0, 80)}`);
  const text = whole.replace(/^export /m, "");
  // Overloads of a function are one declaration.
  module.own.set(name, module.own.has(name) ? `${module.own.get(name)}\n${text}` : text);
  if (statement.startsWith("export "))
    module.exports.set(name, { name, type: /^export (interface|type) /.test(statement) });
}

const withoutComments = (text: string): string => text.replaceAll(/\/\*\*[^]*?\*\//g, "");

/** Everything that an entry's exports reach, and the imports that stay. Throws where two modules' names would collide. */
export function flatten(entry: Entry): {
  declarations: Declaration[];
  imports: Map<string, Set<string>>;
  stars: string[];
} {
  const modules = new Map<string, Module>();
  const at = (path: string): Module => {
    if (!modules.has(path)) modules.set(path, read(path));
    return modules.get(path) as Module;
  };
  const declarations = new Map<string, Declaration & { path: string }>();
  const imports = new Map<string, Set<string>>();
  const stars: string[] = [];

  /** Where an exported name of a module is declared. */
  const origin = (path: string, name: string): { path: string; name: string } | undefined => {
    const module = at(path);
    const found = module.exports.get(name);
    if (found?.from !== undefined) return origin(target(found.from, path), found.name);
    if (found !== undefined) return { path, name: found.name };
    for (const star of module.stars) {
      const deeper = origin(target(star, path), name);
      if (deeper !== undefined) return deeper;
    }
    return undefined;
  };
  const target = (specifier: string, importer: string): string => {
    const path = entry.resolve(specifier, importer);
    if (path === undefined) throw new Error(`${importer} exports from ${specifier}, which is not ours`);
    return path;
  };
  const reach = (path: string, name: string, exported: Declaration["exported"]): void => {
    const text = at(path).own.get(name);
    if (text === undefined) throw new Error(`${path} declares no ${name}`);
    const known = declarations.get(name);
    if (known !== undefined && known.path !== path)
      throw new Error(`${name} is declared by ${path} and by ${known.path}`);
    if (known !== undefined) {
      known.exported ??= exported;
      return;
    }
    declarations.set(name, { path, name, text, exported });
    for (const word of new Set(withoutComments(text).match(/[A-Za-z_$][\w$]*/g))) follow(at(path), word);
  };
  const follow = (module: Module, word: string): void => {
    if (module.own.has(word)) return reach(module.path, word, undefined);
    const imported = module.imports.get(word);
    if (imported === undefined) return;
    const path = entry.resolve(imported.from, module.path);
    if (path === undefined || entry.outside.has(path)) {
      const names = imports.get(imported.from) ?? new Set();
      imports.set(imported.from, names.add(imported.name === word ? word : `${imported.name} as ${word}`));
      return;
    }
    const declared = origin(path, imported.name);
    if (declared === undefined || declared.name !== word)
      throw new Error(`${module.path} renames ${imported.name}`);
    reach(declared.path, declared.name, undefined);
  };
  const publish = (module: Module, isType: boolean): void => {
    for (const [name, { type }] of module.exports) {
      const declared = origin(module.path, name);
      if (declared === undefined || declared.name !== name)
        throw new Error(`${module.path} exports ${name} under another name`);
      reach(declared.path, name, isType || type ? "type" : "value");
    }
    for (const star of module.stars) {
      const path = target(star, module.path);
      if (entry.outside.has(path)) stars.push(star);
      else publish(at(path), true);
    }
  };
  publish(at(entry.file), false);
  return {
    declarations: [...declarations.values()].sort((a, b) => (a.name < b.name ? -1 : 1)),
    imports,
    stars,
  };
}

/** The file's text. `ending`: of the files beside it, `.js` or `.cjs`. */
export function declarationFile(
  { declarations, imports, stars }: ReturnType<typeof flatten>,
  ending: string,
): string {
  const beside = (specifier: string): string => specifier.replace(/^(\..*)\.ts$/, `$1${ending}`);
  const isClassAsType = ({ exported, text }: Declaration): boolean =>
    exported === "type" && !/^(interface|type) /m.test(withoutComments(text).trim());
  const lines = [
    ...[...imports].map(
      ([from, names]) => `import { ${[...names].sort().join(", ")} } from "${beside(from)}";`,
    ),
    ...stars.map((from) => `export * from "${beside(from)}";`),
    ...declarations.map((one) =>
      one.exported === undefined || isClassAsType(one)
        ? one.text
        : one.text.replace(/^(?=(declare|interface|type|abstract|class) )/m, "export "),
    ),
  ];
  const types = declarations.filter(isClassAsType).map(({ name }) => name);
  return `${[...lines, `export type { ${types.join(", ")} };`].join("\n")}\n`;
}

/** The compiler's files: of a package by its name, of a module beside another by its path. */
export function resolver(folder: string, packages: Record<string, string>): Entry["resolve"] {
  return (specifier, importer) => {
    if (packages[specifier] !== undefined) return join(folder, packages[specifier]);
    if (!specifier.startsWith(".")) return undefined;
    return join(folder, relative(folder, join(dirname(importer), specifier.replace(/\.ts$/, ".d.ts"))));
  };
}
