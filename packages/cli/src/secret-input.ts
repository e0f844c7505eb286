import { readAll, type Terminal } from "./terminal.ts";

/** Asks for a secret at a terminal, without showing what is typed; else reads standard input. */
export async function readSecret(terminal: Terminal, question: string): Promise<string> {
  const { stdin, stderr } = terminal;
  if (stdin.isTTY !== true || stdin.setRawMode === undefined)
    return (await readAll(stdin)).toString("utf8").trim();
  stderr.write(question);
  stdin.setRawMode(true);
  let typed = "";
  try {
    for await (const piece of stdin) {
      for (const character of (piece as Buffer).toString("utf8")) {
        if (character === "\r" || character === "\n") return typed.trim();
        if (character === "\x03" || character === "\x04") throw new Error("no API key was given");
        if (character === "\x7f" || character === "\b") typed = typed.slice(0, -1);
        else typed += character;
      }
    }
    return typed.trim();
  } finally {
    stdin.setRawMode(false);
    stderr.write("\n");
  }
}
