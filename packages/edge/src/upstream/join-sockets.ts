import type { Duplex } from "node:stream";
import type { PieceRate } from "@cloche/base";
import { readPieces } from "../edge-limits.ts";
import { Gathered } from "./gathered.ts";

const gatheredBytes = 64 * 1024;

/** Joins the two ends of an upgraded connection, within the sandbox's `work` of a turn. */
export function joinSockets(client: Duplex, far: Duplex, work: PieceRate): void {
  const end = (): void => {
    client.destroy();
    far.destroy();
  };
  for (const socket of [client, far]) {
    socket.on("error", end);
    socket.on("close", end);
  }
  carry(client, far, work);
  carry(far, client, work);
}

/** Carries all that `from` sends, and its end, at the pace of `to`. */
function carry(from: Duplex, to: Duplex, work: PieceRate): void {
  let isHeld = false;
  let late: Buffer | undefined;
  const goOn = (): void => {
    if (!isHeld && late === undefined) from.resume();
  };
  const gathered = new Gathered(gatheredBytes, (bytes) => {
    if (to.destroyed || to.write(bytes)) return;
    isHeld = true;
    from.pause();
  });
  const take = (chunk: Buffer): void => {
    work.spend(readPieces);
    gathered.push(chunk);
  };
  to.on("drain", () => {
    isHeld = false;
    goOn();
  });
  from.on("data", (chunk: Buffer) => {
    if (work.mayBegin(takeLate)) return take(chunk);
    late = chunk;
    from.pause();
  });
  const takeLate = (): void => {
    const chunk = late;
    late = undefined;
    if (chunk !== undefined) take(chunk);
    goOn();
  };
  from.once("end", () => {
    gathered.flush();
    to.end();
  });
  from.resume();
}
