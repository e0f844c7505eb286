// Defences of requests that come while a server starts and stops (defences.ts).
import type { Defence } from "./defence.ts";

export const drainDefences: readonly Defence[] = [
  {
    what: "an edge that stops answers a client that asks again on its connection",
    file: "packages/edge/src/edge.ts",
    find: "!this.#kept.usedWithin(idleMs)",
    replace: "idleMs >= 0",
    project: "unit",
    test: "packages/edge/src/drain.test.ts",
    named: "answers a client that asks again",
  },
  {
    what: "an edge that drains refuses no stream that a client is sending",
    file: "packages/edge/src/http2-clients.ts",
    find: "if (exchanges.size > 0) session.close();",
    replace: "if (exchanges !== undefined) session.close();",
    project: "unit",
    test: "packages/edge/src/drain.test.ts",
    named: "a stream that comes while the edge stops",
  },
  {
    what: "an edge that stops answers a client whose handshake is under way",
    file: "packages/edge/src/edge.ts",
    find: "accepted: (socket) => this.#kept.used(socket),",
    replace: "accepted: () => undefined,",
    project: "unit",
    test: "packages/edge/src/drain.test.ts",
    named: "handshake is under way",
  },
  {
    what: "an edge listens once it knows its routes",
    file: "packages/edge/src/edge.ts",
    find: "this.#options.routes, this.#clock, this.#log, this.#stopping.signal, resolve)",
    replace:
      "this.#options.routes, this.#clock, this.#log, this.#stopping.signal, resolve);\n      resolve();\n      void Promise.resolve()",
    project: "unit",
    test: "packages/edge/src/health.test.ts",
    named: "listens once it knows its routes",
  },
  {
    what: "a server that stops answers a connection that has asked nothing yet",
    file: "packages/base/src/http-drain.ts",
    find: 'listener.prependListener("connection", (socket) => this.#kept.used(socket));',
    replace: "",
    project: "unit",
    test: "packages/base/src/http-drain.test.ts",
    named: "has asked nothing yet",
  },
  {
    what: "a server that stops accepts the connections that the kernel has established",
    file: "packages/base/src/http-drain.ts",
    find: "await acceptEstablished(server);",
    replace: "",
    project: "unit",
    test: "packages/base/src/http-drain.test.ts",
    named: "that the kernel has established",
  },
  {
    what: "a server that takes no new connections answers on those that it has",
    file: "packages/base/src/http-drain.ts",
    find: "return new Promise((resolve) => void net.Server.prototype.close.call(server, () => resolve()));",
    replace: "return new Promise((resolve) => void server.close(() => resolve()));",
    project: "unit",
    test: "packages/base/src/http-drain.test.ts",
    named: "answers a kept connection",
  },
];
