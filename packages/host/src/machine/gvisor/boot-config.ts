// What the agent is started with; see packages/agent/src/boot-config.ts.
import { createHash } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { defaults } from "@cloche/protocol";
import { SLOT_MOUNT } from "./bundle.ts";

export const bootConfig = (secret: string): object => ({
  port: defaults.agentPort,
  diskPath: `${SLOT_MOUNT}/disk`,
  memoryGuard: true,
  bootstrapControlSecretSha256: createHash("sha256").update(secret).digest("hex"),
});

/** Only the secret's hash reaches the machine. */
export async function writeBootConfig(slotDir: string, secret: string): Promise<void> {
  await writeFile(join(slotDir, "boot.json"), JSON.stringify(bootConfig(secret)));
}
