/**
 * Visitors of public ports hold a bounded number of the edge's connections; callers with a token are not counted.
 */
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { sandboxA } from "../testing/fake-gateway.ts";
import { Rig, until } from "../testing/rig.ts";

test.each(["visitsOfSandbox", "visitsOfTeam"] as const)(
  "beyond %s a visitor is refused until another ends",
  async (bound) => {
    await using rig = await Rig.start({ limits: { [bound]: 2 } });
    const open: ServerResponse[] = [];
    const server = createServer((_request, response) => void open.push(response)).listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    rig.gateway.set({ sandboxId: sandboxA, publicPorts: [port], teamId: "team-x" });
    const at = { label: `${port}-${sandboxA}` };
    const first = rig.ask(at);
    const socket = await rig.connect(`${at.label}.${rig.host().split(".").slice(1).join(".").split(":")[0]}`);
    socket.write(`GET / HTTP/1.1\r\nHost: ${rig.host(at.label)}\r\n\r\n`);
    await until(() => open.length === 2);
    const refused = await rig.ask(at);
    expect([refused.status, refused.headers["retry-after"]]).toEqual([429, "1"]);
    const known = rig.ask({ ...at, headers: await rig.bearer() });
    await until(() => open.length === 3);
    open[2]?.end("known");
    expect((await known).body).toBe("known");
    socket.destroy();
    await until(() => open[0]?.closed === true || open[1]?.closed === true);
    const next = rig.ask(at);
    await until(() => open.length === 4);
    for (const response of open) if (!response.closed) response.end("ok");
    expect([(await first).body, (await next).body]).toEqual(["ok", "ok"]);
    server.close();
  },
);
