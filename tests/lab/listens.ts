import { connect } from "node:net";

/** Whether something listens there. */
export function listens(address: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host: address, port, timeout: 1_000 });
    const answer = (does: boolean): void => {
      socket.destroy();
      resolve(does);
    };
    socket.once("connect", () => answer(true));
    socket.once("timeout", () => answer(false));
    socket.once("error", () => answer(false));
  });
}
