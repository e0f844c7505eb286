// Defences of the address that all sandboxes share (defences.ts).
import type { Defence } from "./defence.ts";

const address = { project: "unit", test: "packages/edge/src/routing/shared-address.test.ts" } as const;
const port = { project: "unit", test: "packages/edge/src/routing/shared-port.test.ts" } as const;

export const addressDefences: readonly Defence[] = [
  {
    what: "another name for the host is not the address of all sandboxes",
    file: "packages/edge/src/routing/shared-address.ts",
    find: 'return name === baseDomain || name === "localhost" || isIP(name) === 4 ? name : undefined;',
    replace: "return name.endsWith(`.${baseDomain}`) ? undefined : name;",
    ...address,
    named: "another name for this machine",
  },
  {
    what: "header and path name the same sandbox",
    file: "packages/edge/src/routing/shared-address.ts",
    find: "if (named.sandboxId !== undefined && named.sandboxId !== sandboxId)",
    replace: "if (false)",
    ...address,
    named: "or two",
  },
  {
    what: "nothing is served without TLS beyond the loopback",
    file: "packages/edge/src/http1/listener.ts",
    find: "if (!isLoopback(address))",
    replace: "if (isLoopback(address) === undefined)",
    ...address,
    named: "beyond the loopback",
  },
  {
    what: "no service worker's script is served at the shared address",
    file: "packages/edge/src/routing/router.ts",
    find: 'if (request.headers["service-worker"] !== undefined)',
    replace: "if (false)",
    ...port,
    named: "service worker",
  },
  {
    what: "a link's cookie does not count at the shared address or without TLS",
    file: "packages/edge/src/routing/port-access.ts",
    find: "prefix === undefined && !isPlain;",
    replace: "(prefix, isPlain, true);",
    ...port,
    named: "cookie counts",
  },
  {
    what: "no cookie of a port reaches another at the shared address",
    file: "packages/edge/src/routing/port-access.ts",
    find: "cookies: isShared ? undefined : cookies.others",
    replace: "cookies: cookies.others",
    ...port,
    named: "nor a cookie",
  },
  {
    what: "headers of a whole origin are dropped at the shared address",
    file: "packages/edge/src/routing/shared-port.ts",
    find: "if (ofWholeOrigin.has(lower)) continue;",
    replace: "void ofWholeOrigin;",
    ...port,
    named: "whole origin",
  },
  {
    what: "a browser's cache keeps sandboxes apart that are asked by one URL",
    file: "packages/edge/src/routing/router.ts",
    find: "...(isShared ? varyByTarget : [])",
    replace: "...(isShared ? [] : [])",
    ...port,
    named: "cache",
  },
  {
    what: "a port's document at the shared address has an origin of its own",
    file: "packages/edge/src/routing/shared-port.ts",
    find: 'kept.push("Content-Security-Policy", documentPolicy, ...varyByTarget);',
    replace: "void documentPolicy;",
    ...port,
    named: "whole origin",
  },
  {
    what: "no cookie of a port is for the sandboxes of others",
    file: "packages/edge/src/exchange/headers.ts",
    find: 'lower === "set-cookie" ? value.replace(domainOfCookie, "") : value',
    replace: "value",
    project: "unit",
    test: "packages/edge/src/routing/port-access.test.ts",
    named: "for the sandboxes of others",
  },
  {
    what: "a request that makes what routes it throw does not end the process",
    file: "packages/edge/src/edge.ts",
    find: "queueMicrotask(() => this.#enterRoute(exchange));",
    replace: "queueMicrotask(() => this.#route(exchange));",
    project: "unit",
    test: "packages/edge/src/routing/neighbour.test.ts",
    named: "goes on, where a request",
  },
];
