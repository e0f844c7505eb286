import { createHmac, hkdfSync, timingSafeEqual } from "node:crypto";
import { channel } from "@cloche/protocol";

/**
 * The agent's channel keys (protocol's channel.ts). They come from the bootstrap secret until Assign brings the next control secret; a
 * clone has its source's keys until its own Assign. Kept only in memory, which users' processes cannot read.
 */
export class ChannelKeys {
  #preSharedKey: Buffer;
  #tokenKey: Buffer;
  #generation = 0;
  #onReplaced: (carriedBy: unknown) => void = () => undefined;

  /** `keyHex`: the channel key. */
  constructor(keyHex: string) {
    const key = Buffer.from(keyHex, "hex");
    this.#preSharedKey = derive(key, channel.labels.preSharedKey);
    this.#tokenKey = derive(key, channel.labels.tokenKey);
  }

  get preSharedKey(): Buffer {
    return this.#preSharedKey;
  }

  /** Grows with every replacement. */
  get generation(): number {
    return this.#generation;
  }

  /** From now on only the new secret, or its channel key, is accepted. `carriedBy`: the connection that brought the secret. */
  replace(controlSecret: string, carriedBy?: unknown): void {
    const key = channelKeyOf(controlSecret);
    this.#preSharedKey = derive(key, channel.labels.preSharedKey);
    this.#tokenKey = derive(key, channel.labels.tokenKey);
    this.#generation += 1;
    this.#onReplaced(carriedBy);
  }

  set onReplaced(listener: (carriedBy: unknown) => void) {
    this.#onReplaced = listener;
  }

  /** Whether `mac` is the MAC of an inner token's `signed` part. */
  isMacOf(signed: string, mac: Buffer): boolean {
    const right = createHmac("sha256", this.#tokenKey).update(signed).digest();
    return mac.length === right.length && timingSafeEqual(mac, right);
  }
}

export const channelKeyOf = (controlSecret: string): Buffer => derive(controlSecret, channel.labels.key);

function derive(from: string | Uint8Array, label: string): Buffer {
  return Buffer.from(hkdfSync("sha256", from, "", label, channel.keyBytes));
}
