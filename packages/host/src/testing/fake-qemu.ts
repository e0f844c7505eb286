/** A fake QEMU for tests of QMP: it answers what the test says. */
import { createServer, type Socket } from "node:net";

export interface QmpCommand {
  readonly execute: string;
  readonly id: number;
  readonly arguments?: object;
}

/** The text to send; "" sends nothing. */
export type Answering = (command: QmpCommand, socket: Socket) => string;

/** Listens at `path`. The returned function ends it. */
export async function fakeQemu(path: string, answer: Answering): Promise<() => void> {
  const server = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.write('{"QMP": {"version": {}, "capabilities": []}}\r\n');
    socket.on("data", (data) => {
      for (const line of data.toString().trim().split("\n")) {
        const command = JSON.parse(line) as QmpCommand;
        socket.write(
          command.execute === "qmp_capabilities" ? answered(command, {}) : answer(command, socket),
        );
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  return () => void server.close();
}

export const answered = ({ id }: QmpCommand, value: unknown): string =>
  `${JSON.stringify({ return: value, id })}\r\n`;
export const refused = ({ id }: QmpCommand, desc: string): string =>
  `${JSON.stringify({ error: { class: "GenericError", desc }, id })}\r\n`;
