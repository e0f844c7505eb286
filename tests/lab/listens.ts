// Whether a program of the lab can be reached, asked from this machine.
import { request } from "node:https";
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

/** The status of a GET, undefined without an answer. No certificate is checked: it is asked whether it serves. */
export function statusOf(url: string): Promise<number | undefined> {
  return new Promise((resolve) => {
    const asked = request(url, { rejectUnauthorized: false, timeout: 2_000, agent: false }, (answer) => {
      answer.resume();
      resolve(answer.statusCode);
    });
    asked.once("timeout", () => asked.destroy());
    asked.once("error", () => resolve(undefined));
    asked.end();
  });
}
