import { createHmac } from "node:crypto";
import { closeSync, openSync, readSync, writeSync } from "node:fs";

/**
 * The source of all random values in the agent. A memory snapshot copies the state of Node's generator, so two clones would get the same
 * values from `node:crypto`. The kernel's generator, read on every call, does not repeat. Entropy that the host gave this clone at Assign
 * is mixed in, in case a runtime's kernel does repeat.
 */
export interface Randomness {
  /** `length` random bytes. */
  bytes(length: number): Buffer;
  /** Mixes in entropy that only this clone has. */
  mix(entropy: Uint8Array): void;
}

export function kernelRandomness(devicePath = "/dev/urandom"): Randomness {
  let device = -1;
  let own: Buffer | undefined;
  let counter = 0;

  const fromKernel = (length: number): Buffer => {
    if (device < 0) device = openSync(devicePath, "r");
    const bytes = Buffer.allocUnsafe(length);
    let filled = 0;
    while (filled < length) filled += readSync(device, bytes, filled, length - filled, null);
    return bytes;
  };

  return {
    bytes(length) {
      const bytes = fromKernel(length);
      if (own === undefined) return bytes;
      for (let offset = 0; offset < length; offset += 32) {
        counter += 1;
        const mask = createHmac("sha256", own).update(String(counter)).digest();
        for (let at = offset; at < Math.min(length, offset + 32); at += 1) {
          bytes[at] = (bytes[at] ?? 0) ^ (mask[at - offset] ?? 0);
        }
      }
      return bytes;
    },
    mix(entropy) {
      own = createHmac("sha256", entropy).update(fromKernel(32)).digest();
      try {
        const pool = openSync(devicePath, "w");
        try {
          writeSync(pool, entropy);
        } finally {
          closeSync(pool);
        }
      } catch {
        // Some kernels do not let the agent write into their pool; the mask above does not depend on it.
      }
    },
  };
}
