/** The installation id of a home: `<home>/installation.json`, made once, copied by backups. Database and store name this id. */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile, writeDurably } from "@cloche/base";
import { ClocheError, isInstallationId, newInstallationId, type RandomBytes } from "@cloche/protocol";

export const installationFile = "installation.json";

export async function ensureInstallation(home: string, randomBytes: RandomBytes): Promise<string> {
  const found = await readInstallation(home);
  if (found !== undefined) return found;
  await mkdir(home, { recursive: true });
  const id = newInstallationId(randomBytes);
  await writeDurably(join(home, installationFile), `${JSON.stringify({ id })}\n`, 0o600);
  return id;
}

/** Undefined: the home has no installation id yet. */
export async function readInstallation(home: string): Promise<string | undefined> {
  const path = join(home, installationFile);
  const note = await readJsonFile(path).catch((error: unknown) => {
    if (error instanceof SyntaxError) return {};
    throw error;
  });
  if (note === undefined) return undefined;
  const id = (note as { id?: unknown } | null)?.id;
  if (typeof id === "string" && isInstallationId(id)) return id;
  throw new ClocheError(
    "failed_precondition",
    `${path} does not name an installation ({"id": "ins-…"}): put it back from a backup; or delete it, and take database and checkpoint storage over (npx cloche take-over)`,
  );
}
