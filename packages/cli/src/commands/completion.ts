import type { Argument, Command } from "commander";
import { UsageError } from "../exit-codes.ts";
import { shortState } from "../sandbox-format.ts";
import { write } from "../terminal.ts";
import type { Registry } from "../register.ts";

/** The command by which a shell asks for candidates. The typed words follow, the last one unfinished. */
export const completeWord = "__complete";
/** Limit of a request: a person waits for the candidates. */
const askMs = 2_000;

const scripts = {
  bash: `_cloche() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do COMPREPLY+=("\${line%%$'\\t'*}"); done \\
    < <("\${COMP_WORDS[0]}" ${completeWord} "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _cloche cloche
`,
  zsh: `#compdef cloche
_cloche() {
  local -a found
  local line
  while IFS= read -r line; do found+=("\${\${line//:/\\\\:}/$'\\t'/:}"); done \\
    < <("\${words[1]}" ${completeWord} "\${(@)words[2,CURRENT]}" 2>/dev/null)
  (( \${#found} )) && _describe cloche found || _files
}
if [[ \${funcstack[1]} == _cloche ]]; then _cloche "$@"; else compdef _cloche cloche; fi
`,
  fish: `function __cloche_candidates
  set -l words (commandline -opc) (commandline -ct)
  $words[1] ${completeWord} $words[2..-1] 2>/dev/null
end
complete -c cloche -f -a '(__cloche_candidates)'
complete -c cloche -n '__fish_seen_subcommand_from cp' -F
`,
} as const;

/** completion. */
export function addCompletionCommand(registry: Registry): void {
  registry.program
    .command("completion <shell>")
    .description("print what makes a shell complete commands, options and sandboxes: bash, zsh or fish")
    .addHelpText(
      "after",
      `
Put one of these into the shell's start-up file:
  eval "$(cloche completion bash)"     # ~/.bashrc
  eval "$(cloche completion zsh)"      # ~/.zshrc, after compinit
  cloche completion fish | source      # ~/.config/fish/config.fish`,
    )
    .action(async (shell: string) => {
      const script = scripts[shell as keyof typeof scripts];
      if (script === undefined)
        throw new UsageError(`there is no completion for ${shell}; use bash, zsh or fish`);
      await write(registry.terminal.stdout, script);
    });
}

/** Prints the candidates for the last word, one on a line, a tab before its description. No candidates are no error. */
export async function printCandidates(registry: Registry, words: readonly string[]): Promise<void> {
  const current = words.at(-1) ?? "";
  const candidates = await candidatesFor(registry, words.slice(0, -1), current).catch(() => []);
  const fitting = candidates.filter(([word]) => word.startsWith(current));
  const lines = fitting.map(([word, description]) => `${word}\t${description.split(/[.;\n]/)[0] ?? ""}\n`);
  await write(registry.terminal.stdout, lines.join(""));
}

type Candidate = [word: string, description: string];

async function candidatesFor(
  registry: Registry,
  typed: readonly string[],
  current: string,
): Promise<Candidate[]> {
  let command = registry.program;
  let operands = 0;
  for (let at = 0; at < typed.length; at += 1) {
    const word = typed[at] ?? "";
    if (word === "--") return [];
    const option = command.options.find(({ short, long }) => word === short || word === long);
    if (option?.required === true) {
      at += 1;
      if (at === typed.length) return (option.argChoices ?? []).map((choice) => [choice, ""]);
    } else if (!word.startsWith("-") || word === "-") {
      const child = operands === 0 ? childOf(command, word) : undefined;
      if (child === undefined) operands += 1;
      else command = child;
    }
  }
  if (current.startsWith("-")) return optionsOf(command, registry.program);
  const children = operands === 0 ? command.createHelp().visibleCommands(command) : [];
  if (children.length > 0) return children.map((child) => [child.name(), child.description()]);
  const last = command.registeredArguments.at(-1);
  return valuesOf(
    registry,
    command.registeredArguments[operands] ?? (last?.variadic === true ? last : undefined),
  );
}

const childOf = (command: Command, word: string): Command | undefined =>
  command.commands.find((child) => child.name() === word || child.aliases().includes(word));

function optionsOf(command: Command, program: Command): Candidate[] {
  const all = [...command.createHelp().visibleOptions(command), ...program.options];
  const named = new Map(all.map(({ long, description }) => [long ?? "", description]));
  return [...named].filter(([long]) => long !== "");
}

async function valuesOf({ terminal }: Registry, argument: Argument | undefined): Promise<Candidate[]> {
  if (argument?.argChoices !== undefined) return argument.argChoices.map((choice) => [choice, ""]);
  if (argument?.name() === "shell") return Object.keys(scripts).map((shell) => [shell, ""]);
  if (argument?.name() !== "sandbox") return [];
  const cloche = await terminal.connect();
  try {
    const signal = AbortSignal.any([terminal.signal, AbortSignal.timeout(askMs)]);
    const { sandboxes } = await cloche.gateway.listSandboxes({ page_size: 200 }, { signal });
    // A name with special characters of a shell is replaced by its id.
    return sandboxes.map(({ id, name, state }) => [/^[\w.-]+$/.test(name) ? name : id, shortState(state)]);
  } finally {
    await cloche.close();
  }
}
