/** The configuration that the agent starts with; see packages/agent/src/boot-config.ts. */
import { createHash } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { listenerFd } from "@cloche/artifacts";
import { channelKeyOf } from "@cloche/base";
import { defaults } from "@cloche/protocol";
import { slotMount } from "./bundle.ts";

export const bootConfig = (secret: string): object => ({
  port: defaults.agentPort,
  listenFd: listenerFd,
  diskPath: `${slotMount}/disk`,
  memoryGuard: true,
  bootstrapControlSecretSha256: createHash("sha256").update(secret).digest("hex"),
  bootstrapChannelKey: channelKeyOf(secret).toString("hex"),
});

/** Only the secret's hash and the channel's key reach the machine, where users cannot see them; the first Assign replaces both. */
export async function writeBootConfig(slotDir: string, secret: string): Promise<void> {
  await writeFile(join(slotDir, "boot.json"), JSON.stringify(bootConfig(secret)), { mode: 0o600 });
}
