// The network policy, proved between namespaces made here: one plays the host, one the internet and the private network
// behind it. No packet can leave them: neither is connected to this machine's network.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { parseAllowedDomain } from "@cloche/protocol";
import type { EgressReport } from "../../packages/host/src/network/egress-report.ts";
import type { NetworkLease } from "../../packages/host/src/network/network.ts";
import { run } from "../../packages/base/src/commands/run.ts";
import { cannotRun, type Lab, openLab } from "./lab.ts";
import { LineProcess } from "./line-process.ts";
import type { NetworkCommand } from "./network-service.ts";

const PUBLIC = "11.9.9.9";
const OTHER = "11.9.9.8";
const HOST_PUBLIC = "11.1.0.1";
/** One of each kind that must stay closed. All of them answer to the host, so that only the policy is in the way. */
const CLOSED = [
  "10.77.0.9",
  "100.64.0.9",
  "169.254.169.254",
  "172.16.0.9",
  "192.168.7.9",
  "198.18.0.9",
  "203.0.113.9",
];
const SUBNET = "10.199.0.0/16";
const UPLINK_HOST = "10.199.0.1";
/** Asks for the address by ARP, under 50 addresses that are not the sandbox's. */
const FORGED_ARP = `
import socket, struct, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0x0806))
for n in range(1, 51):
    mac = bytes([2, 0, 0, 0, 0, n])
    ends = mac + socket.inet_aton(f"11.7.0.{n}") + bytes(6) + socket.inet_aton(sys.argv[1])
    link.send(b"\\xff" * 6 + mac + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + ends)
print(n)
`;

describe.skipIf(cannotRun)(`network${cannotRun ? ` (skipped: ${cannotRun})` : ""}`, () => {
  let lab: Lab;
  let host: string;
  let internet: string;
  const servers: LineProcess[] = [];
  let service: LineProcess;

  const script = (name: string) => join(import.meta.dirname, name);
  // Not `ip netns exec`: its private mount namespace would hide the namespaces that the service makes.
  const inNamespace = (namespace: string, ...argv: string[]) => [
    "nsenter",
    `--net=/run/netns/${namespace}`,
    ...argv,
  ];
  const node = (namespace: string, name: string, ...args: string[]) =>
    inNamespace(namespace, process.execPath, script(name), ...args);
  const serve = async (namespace: string, address: string, port: number, mode = "serve") => {
    const server = new LineProcess(node(namespace, "network-probe.ts", mode, address, String(port)));
    expect(await server.read()).toEqual({ listening: true });
    servers.push(server);
  };
  const probe = async (
    namespace: string,
    mode: "tcp" | "udp" | "resolve",
    address: string,
    port: number,
    extra?: string,
  ) => {
    const argv = node(namespace, "network-probe.ts", mode, address, String(port), ...(extra ? [extra] : []));
    return JSON.parse((await run(argv as [string])).stdout) as Record<string, unknown>;
  };
  const startService = async (tableSize?: number) => {
    const settings = {
      ...(tableSize && { tableSize }),
      program: lab.nativeProgram,
      tag: lab.tag,
      subnet: SUBNET,
      stateDir: join(lab.home, "network"),
      resolver: PUBLIC,
      slotsAhead: 1,
    };
    const started = new LineProcess(node(host, "network-service.ts", JSON.stringify(settings)));
    expect(await started.read()).toEqual({ ready: true });
    return started;
  };
  const command = async (one: NetworkCommand) => {
    const answer = await service.ask(one);
    if ("error" in answer) throw new Error(String(answer["error"]));
    return answer["value"];
  };
  const lease = async () => (await command({ op: "lease" })) as NetworkLease;
  const namespaceOf = ({ namespacePath }: NetworkLease) => namespacePath.replace("/run/netns/", "");

  beforeAll(async () => {
    lab = await openLab();
    host = `test-${lab.tag}-host`;
    internet = `test-${lab.tag}-net`;
    const script = [
      `netns add ${host}`,
      `netns add ${internet}`,
      `-n ${host} link add wan type veth peer name lan netns ${internet}`,
      `-n ${host} link set lo up`,
      `-n ${host} link set wan up`,
      `-n ${host} addr add ${HOST_PUBLIC}/24 dev wan`,
      `-n ${internet} link set lo up`,
      `-n ${internet} link set lan up`,
      `-n ${internet} addr add 11.1.0.2/24 dev lan`,
      ...[PUBLIC, OTHER, ...CLOSED].map((address) => `-n ${internet} addr add ${address}/32 dev lo`),
      `-n ${host} route add default via 11.1.0.2`,
      // Others on the host's network may well send to sandboxes' addresses.
      `-n ${internet} route add ${SUBNET} via ${HOST_PUBLIC}`,
    ];
    for (const line of script) await run(["ip", ...line.split(" ")]);
    // A new namespace inherits the setting of this machine, where another instance may have turned it on.
    await run(inNamespace(host, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward") as [string]);
    await serve(internet, "0.0.0.0", 80);
    // UDP servers on any address answer from whichever they like.
    await serve(internet, PUBLIC, 81);
    await serve(internet, PUBLIC, 53, "dns");
    await serve(host, "0.0.0.0", 8080);
  });
  afterAll(async () => {
    for (const server of servers) await server.end();
    for (const namespace of [host, internet]) await run(["ip", "netns", "del", namespace]);
    await lab.close();
  });
  beforeEach(async () => {
    service = await startService();
  });
  afterEach(async () => {
    await command({ op: "destroy" });
    await service.end();
    const { stdout: tables } = await run(inNamespace(host, "nft", "list", "tables") as [string]);
    const { stdout: links } = await run(["ip", "-o", "-n", host, "link"]);
    const { stdout: routes } = await run(["ip", "-n", host, "route"]);
    expect(`${tables}${links}${routes}`).not.toMatch(/cl-|cloche|10\.199/);
    const { stdout: forward } = await run(
      inNamespace(host, "cat", "/proc/sys/net/ipv4/ip_forward") as [string],
    );
    expect(forward.trim(), "ip_forward is as it was").toBe("0");
    expect((await readdir("/run/netns")).filter((name) => name.includes(lab.tag))).toEqual(
      [host, internet].sort(),
    );
  });

  it("reaches the public internet as the host, and is reached by the host", async () => {
    const one = await lease();
    expect(await probe(namespaceOf(one), "tcp", PUBLIC, 80)).toEqual({ connected: true, peer: HOST_PUBLIC });
    expect(await probe(namespaceOf(one), "udp", PUBLIC, 81)).toEqual({ answered: true, peer: HOST_PUBLIC });
    await serve(namespaceOf(one), "0.0.0.0", 4070);
    expect(await probe(host, "tcp", one.agentHost, 4070)).toEqual({ connected: true, peer: UPLINK_HOST });
  });

  it("reaches no private, link-local, metadata, shared or reserved address, and counts the tries", async () => {
    const one = await lease();
    await Promise.all(
      CLOSED.map(async (address) => {
        expect(await probe(host, "tcp", address, 80), `${address} answers the host`).toMatchObject({
          connected: true,
        });
        expect(await probe(namespaceOf(one), "tcp", address, 80), address).toMatchObject({
          connected: false,
        });
      }),
    );
    const denials = (await command({ op: "denials" })) as Record<number, { packets: number }>;
    expect(denials[one.slot]?.packets).toBeGreaterThanOrEqual(CLOSED.length);
  });

  it("reaches nothing of the host, by none of its addresses", async () => {
    const one = await lease();
    await Promise.all(
      [HOST_PUBLIC, UPLINK_HOST, "10.199.0.2", one.gateway].map(async (address) => {
        expect(await probe(namespaceOf(one), "tcp", address, 8080), address).toMatchObject({
          connected: false,
        });
      }),
    );
  });

  it("reaches no other sandbox, and nobody outside reaches a sandbox", async () => {
    const one = await lease();
    const two = await lease();
    await serve(namespaceOf(two), "0.0.0.0", 4070);
    expect(await probe(host, "tcp", two.address, 4070)).toMatchObject({ connected: true });
    const refused = await Promise.all([
      probe(namespaceOf(one), "tcp", two.address, 4070),
      probe(namespaceOf(one), "udp", two.address, 4070),
      probe(internet, "tcp", two.address, 4070),
      probe(internet, "tcp", UPLINK_HOST, 8080),
    ]);
    const [byTcp, byUdp] = [{ connected: false }, { answered: false }];
    expect(refused).toMatchObject([byTcp, byUdp, byTcp, byTcp]);
  });

  it("cannot send under another address, nor speak IPv6", async () => {
    const one = await lease();
    const two = await lease();
    const namespace = namespaceOf(one);
    // From now on it has the router's hardware address, which it would not get under another of its own.
    expect(await probe(namespace, "udp", PUBLIC, 81)).toMatchObject({ answered: true });
    const addresses = [two.address, "11.5.5.5", UPLINK_HOST];
    for (const forged of addresses)
      await run(["ip", "-n", namespace, "addr", "add", `${forged}/32`, "dev", "eth0"]);
    await Promise.all(
      addresses.map(async (forged) => {
        expect(await probe(namespace, "udp", PUBLIC, 81, forged), forged).toMatchObject({ answered: false });
      }),
    );
    // No answer could come back to another's address: that each packet was refused is what counts.
    const denials = (await command({ op: "denials" })) as Record<number, { packets: number }>;
    expect(denials[one.slot]?.packets).toBeGreaterThanOrEqual(3);
    expect(await probe(namespace, "udp", PUBLIC, 81)).toMatchObject({ answered: true });
    // A neighbour entry of each address that a sandbox made up would take the whole computer's places for entries.
    const asked = await run(inNamespace(namespace, "python3", "-c", FORGED_ARP, one.gateway) as [string]);
    expect(asked.stdout.trim()).toBe("50");
    const { stdout: known } = await run([
      "ip",
      "-n",
      `cloche-${lab.tag}`,
      "neigh",
      "show",
      "dev",
      `s${one.slot}`,
    ]);
    expect(known).not.toMatch(/^11\.7\./m);
    // `localhost` is ::1 too; nothing else is.
    const { stdout } = await run(["ip", "-6", "-n", namespace, "-oneline", "addr"]);
    expect(stdout.match(/\S+ +inet6 \S+/g)).toEqual([expect.stringMatching(/^lo +inet6 ::1\/128$/)]);
  });

  it("resolves names through the host's resolvers, by the fixed address and by its gateway", async () => {
    const one = await lease();
    for (const server of ["198.18.0.53", one.gateway]) {
      expect(await probe(namespaceOf(one), "resolve", server, 53), server).toMatchObject({
        addresses: [PUBLIC],
      });
      expect(await probe(namespaceOf(one), "resolve", server, 53, "tcp")).toMatchObject({
        addresses: [PUBLIC],
      });
    }
    expect(await probe(internet, "resolve", UPLINK_HOST, 53)).toMatchObject({ addresses: [] });
  });

  it("changes what may be reached at run time, for open connections too", async () => {
    const one = await lease();
    const namespace = namespaceOf(one);
    const held = new LineProcess(node(namespace, "network-probe.ts", "hold", PUBLIC, "80"));
    expect(await held.read()).toEqual({ echo: HOST_PUBLIC });
    expect(await held.ask("open")).toEqual({ echo: "open" });

    await command({ op: "egress", slot: one.slot, policy: { mode: "none" } });
    expect(await held.ask("none")).toEqual({ error: expect.stringContaining("ECONNRESET") });
    expect(await probe(namespace, "tcp", PUBLIC, 80)).toMatchObject({ connected: false });
    expect(await probe(namespace, "resolve", "198.18.0.53", 53)).toMatchObject({ addresses: [] });

    const allow = [
      { cidr: "11.9.0.0/16", protocol: "tcp" as const, ports: [80, 90] as const },
      { cidr: PUBLIC, protocol: "tcp" as const, ports: [85, 100] as const },
      { cidr: "10.0.0.0/8", protocol: "tcp" as const, ports: [1, 65_535] as const },
    ];
    const domains = [{ name: "cloche.test", below: false, ports: [1, 1] as const }];
    await command({ op: "egress", slot: one.slot, policy: { mode: "list", allow, domains } });
    expect(await probe(namespace, "tcp", PUBLIC, 80)).toMatchObject({ connected: true });
    expect(await probe(namespace, "udp", PUBLIC, 81)).toMatchObject({ answered: false });
    expect(await probe(namespace, "tcp", "11.1.0.2", 80)).toMatchObject({ connected: false });
    expect(await probe(namespace, "tcp", "10.77.0.9", 80), "private, though listed").toMatchObject({
      connected: false,
    });
    expect(await probe(namespace, "resolve", "198.18.0.53", 53)).toMatchObject({ addresses: [PUBLIC] });

    await command({ op: "egress", slot: one.slot, policy: { mode: "open" } });
    expect(await probe(namespace, "udp", PUBLIC, 81)).toMatchObject({ answered: true });
    await held.end();
  });

  describe("under a list of names", () => {
    const RESOLVER = "198.18.0.53";
    const names = (...texts: string[]) => ({
      mode: "list" as const,
      allow: [],
      domains: texts.flatMap((text) => parseAllowedDomain(text) ?? []),
    });
    const resolve = (namespace: string, name: string) =>
      probe(namespace, "resolve", RESOLVER, 53, `udp:${name}`);
    const report = async (slot: number) => (await command({ op: "report", slot })) as EgressReport;

    it("resolves only these, and reaches what they resolve to, on their ports", async () => {
      const one = await lease();
      const namespace = namespaceOf(one);
      await command({ op: "egress", slot: one.slot, policy: names("*.good.test:80") });
      expect(await probe(namespace, "tcp", PUBLIC, 80), "nothing is resolved yet").toMatchObject({
        connected: false,
      });
      expect(await resolve(namespace, "www.evil.test")).toMatchObject({ addresses: [], rcode: 5 });
      expect(await resolve(namespace, "good.test"), "the wildcard is for names below").toMatchObject({
        rcode: 5,
      });
      expect(await resolve(namespace, "www.good.test")).toMatchObject({ addresses: [PUBLIC] });
      expect(await probe(namespace, "tcp", PUBLIC, 80)).toMatchObject({ connected: true });
      expect(await probe(namespace, "udp", PUBLIC, 81), "another port").toMatchObject({ answered: false });
      expect(await probe(namespace, "tcp", OTHER, 80), "another address").toMatchObject({ connected: false });

      const { deniedPackets, deniedNames, recent } = await report(one.slot);
      expect(deniedPackets).toBeGreaterThanOrEqual(3);
      expect(deniedNames).toBe(2);
      expect(recent.map(({ destination, protocol, port }) => `${protocol} ${destination} ${port}`)).toEqual(
        expect.arrayContaining([
          "dns www.evil.test 0",
          "dns good.test 0",
          `tcp ${PUBLIC} 80`,
          `udp ${PUBLIC} 81`,
          `tcp ${OTHER} 80`,
        ]),
      );
    });

    it("follows aliases, and passes on no private address and no record of another name", async () => {
      const one = await lease();
      const namespace = namespaceOf(one);
      await command({ op: "egress", slot: one.slot, policy: names("*.good.test") });
      expect(await resolve(namespace, "alias.good.test")).toMatchObject({ addresses: [OTHER] });
      expect(await probe(namespace, "tcp", OTHER, 80)).toMatchObject({ connected: true });
      expect(await resolve(namespace, "private.good.test"), "rebinding").toMatchObject({ addresses: [] });
      expect(await resolve(namespace, "stray.good.test"), "poisoning").toMatchObject({ addresses: [] });
      expect(await probe(namespace, "tcp", PUBLIC, 80)).toMatchObject({ connected: false });
    });

    it("keeps connections and addresses over kill -9, and cuts them when the name is taken away", async () => {
      const one = await lease();
      const two = await lease();
      const namespace = namespaceOf(one);
      await command({ op: "egress", slot: one.slot, policy: names("www.good.test") });
      await resolve(namespace, "www.good.test");
      const held = new LineProcess(node(namespace, "network-probe.ts", "hold", PUBLIC, "80"));
      expect(await held.read()).toEqual({ echo: HOST_PUBLIC });
      expect(await probe(namespaceOf(two), "tcp", PUBLIC, 80)).toMatchObject({ connected: true });
      await service.kill();
      service = await startService();
      await command({ op: "adopt", slot: one.slot });
      expect(await held.ask("again")).toEqual({ echo: "again" });
      expect(await probe(namespace, "tcp", PUBLIC, 80)).toMatchObject({ connected: true });
      expect(await resolve(namespace, "www.evil.test"), "before anybody said so anew").toMatchObject({
        rcode: 5,
      });
      await resolve(namespace, "www.good.test");
      await command({ op: "egress", slot: one.slot, policy: names("www.good.test", "more.test") });
      expect(await held.ask("still"), "what stays allowed").toEqual({ echo: "still" });
      await command({ op: "egress", slot: one.slot, policy: names("more.test") });
      expect(await held.ask("cut")).toEqual({ error: expect.stringContaining("ECONNRESET") });
      expect(await probe(namespace, "tcp", PUBLIC, 80)).toMatchObject({ connected: false });
      await held.end();
      await command({ op: "reclaim" });
    });
  });

  it("puts addresses and routes back where they were taken out", async () => {
    const one = await lease();
    const namespace = namespaceOf(one);
    await run(["ip", "-n", namespace, "addr", "flush", "dev", "eth0"]);
    expect(await probe(namespace, "udp", PUBLIC, 81)).toMatchObject({ answered: false });
    await command({ op: "prepare", slot: one.slot });
    await command({ op: "prepare", slot: one.slot });
    expect(await probe(namespace, "udp", PUBLIC, 81)).toMatchObject({ answered: true });
  });

  it("is found again after kill -9: leases, policies and open connections live on, the rest is reclaimed", async () => {
    const one = await lease();
    const two = await lease();
    const namespace = namespaceOf(one);
    const allow = [{ cidr: PUBLIC, protocol: "tcp" as const, ports: [80, 80] as const }];
    const domains = [{ name: "cloche.test", below: false, ports: [1, 1] as const }];
    await command({ op: "egress", slot: one.slot, policy: { mode: "list", allow, domains } });
    const held = new LineProcess(node(namespace, "network-probe.ts", "hold", PUBLIC, "80"));
    expect(await held.read()).toEqual({ echo: HOST_PUBLIC });

    await service.kill();
    expect(await held.ask("alone")).toEqual({ echo: "alone" });
    // Half-made: a crash between making the namespace and its link.
    await lab.native.addNetns(`/run/netns/cl-${lab.tag}-9999`);
    service = await startService();
    expect(await held.ask("again")).toEqual({ echo: "again" });

    expect(await command({ op: "adopt", slot: one.slot })).toMatchObject({
      slot: one.slot,
      address: one.address,
    });
    expect(await command({ op: "adopt", slot: 12_345 })).toBeNull();
    expect(await command({ op: "reclaim" })).toEqual([two.slot]);
    const names = await readdir("/run/netns");
    expect(names).not.toContain(namespaceOf(two));
    expect(names).not.toContain(`cl-${lab.tag}-9999`);

    expect(await probe(namespace, "udp", PUBLIC, 81), "still under its list").toMatchObject({
      answered: false,
    });
    expect(await probe(namespace, "resolve", "198.18.0.53", 53)).toMatchObject({ addresses: [PUBLIC] });
    await command({ op: "egress", slot: one.slot, policy: { mode: "none" } });
    expect(await held.ask("cut")).toEqual({ error: expect.stringContaining("ECONNRESET") });
    await held.end();
    expect(await probe(namespaceOf(await lease()), "tcp", PUBLIC, 80)).toMatchObject({ connected: true });
  });

  describe("with a small table of connections", () => {
    const opening: LineProcess[] = [];
    /** How many of `count` connections a sandbox of that team gets. They stay open until the test ends. */
    const opened = async (lease: NetworkLease, count: number, mode = "open"): Promise<number> => {
      const argv = node(namespaceOf(lease), "network-probe.ts", mode, PUBLIC, "80", String(count));
      const program = new LineProcess(argv);
      opening.push(program);
      return Number((await program.read())["opened"]);
    };
    const leaseOf = async (team: string): Promise<NetworkLease> => {
      const leased = await lease();
      await command({ op: "team", slot: leased.slot, team });
      return leased;
    };
    /** Those that have not expired; their number in nf_conntrack_count sinks only once a minute. */
    const entries = async (namespace: string): Promise<number> => {
      const count = ["ip", "netns", "exec", namespace, "sh", "-c", "wc -l < /proc/net/nf_conntrack"] as const;
      return Number((await run([...count])).stdout);
    };

    beforeEach(async () => {
      await service.kill();
      // All sandboxes get 3,072 of it, and a team 768.
      service = await startService(4_096);
    });
    afterEach(async () => {
      for (const program of opening.splice(0)) await program.end();
    });

    it("gives a team's sandboxes so many together, and no connection of another team's share", async () => {
      const [first, second, other] = [await leaseOf("a"), await leaseOf("a"), await leaseOf("b")];
      const [ofFirst = 0, ofSecond = 0] = await Promise.all([opened(first, 800), opened(second, 800)]);
      const ofTeam = ofFirst + ofSecond;
      expect(ofTeam).toBeGreaterThan(500);
      expect(ofTeam).toBeLessThanOrEqual(768);
      expect(await opened(other, 200)).toBe(200);
    }, 60_000);

    it("lets one UDP port talk to as many peers as many ports may to one", async () => {
      const router = `cloche-${lab.tag}`;
      const before = await entries(router);
      await opened(await leaseOf("a"), 300, "peers");
      // In one part they would be twelve.
      await expect.poll(async () => (await entries(router)) - before).toBeGreaterThan(250);
    }, 60_000);

    it("counts a team's connections after kill -9 of the service too", async () => {
      const first = await leaseOf("a");
      expect(await opened(first, 800)).toBeLessThanOrEqual(768);
      await service.kill();
      service = await startService(4_096);
      await command({ op: "adopt", slot: first.slot });
      expect(await opened(first, 200)).toBeLessThan(100);
      await command({ op: "release", slot: first.slot });
      const list = ["nft", "list", "map", "inet", "cloche", "teams"];
      const { stdout } = await run(["ip", "netns", "exec", `cloche-${lab.tag}`, ...list]);
      expect(stdout).not.toContain(`"s${first.slot}"`);
    }, 60_000);

    it("leaves a quarter of the table to the host, however many teams there are", async () => {
      const leases: NetworkLease[] = [];
      for (const team of ["a", "b", "c", "d", "e", "f"]) leases.push(await leaseOf(team));
      const counts = await Promise.all(leases.map((one) => opened(one, 768)));
      const all = counts.reduce((sum, count) => sum + count);
      expect(all).toBeGreaterThan(2_000);
      expect(all).toBeLessThanOrEqual(3_072);
    }, 90_000);

    it("bounds how fast a sandbox opens connections", async () => {
      const one = await leaseOf("a");
      const beganMs = performance.now();
      const counts = await Promise.all([1, 2, 3].map(() => opened(one, 3_000, "churn")));
      const all = counts.reduce((sum, count) => sum + count);
      expect(all).toBeGreaterThan(2_000);
      expect(all).toBeLessThan(2_700 + ((performance.now() - beganMs) / 1_000) * 500);
    }, 90_000);

    it("keeps the entries of closed connections for seconds, in the router and in the host", async () => {
      const router = `cloche-${lab.tag}`;
      const before = [await entries(host), await entries(router)] as const;
      expect(await opened(await leaseOf("a"), 300, "close")).toBe(300);
      const left = async (): Promise<number> =>
        Math.max((await entries(host)) - before[0], (await entries(router)) - before[1]);
      expect(await left()).toBeGreaterThan(200);
      await expect.poll(left, { timeout: 15_000, interval: 500 }).toBeLessThan(50);
    }, 60_000);
  });

  it("destroys a released slot, whoever still is in it, and repeats it", async () => {
    const one = await lease();
    await serve(namespaceOf(one), "0.0.0.0", 4070);
    await command({ op: "release", slot: one.slot });
    await command({ op: "release", slot: one.slot });
    expect(await probe(host, "tcp", one.address, 4070)).toMatchObject({ connected: false });
    expect((await lease()).slot).not.toBe(one.slot);
    expect(await command({ op: "denials" })).not.toHaveProperty(String(one.slot));
  });

  it("leaves nothing of a released slot in the router's rules, whatever it was refused", async () => {
    const quiet = await lease();
    const refused = await lease();
    const elementsOf = async ({ slot }: { slot: number }) =>
      (
        await run(["ip", "netns", "exec", `cloche-${lab.tag}`, "nft", "list", "table", "inet", "cloche"])
      ).stdout
        .split("\n")
        // The kernel's own count of open connections goes with them, that of new ones after a minute.
        .filter((line) => line.includes(`"s${slot}"`) && !/ct count|limit rate over/.test(line));
    await command({ op: "egress", slot: refused.slot, policy: { mode: "none" } });
    expect(await probe(namespaceOf(refused), "tcp", PUBLIC, 80)).toMatchObject({ connected: false });
    expect(await elementsOf(quiet)).not.toEqual([]);
    expect((await elementsOf(refused)).join()).toContain(PUBLIC);
    for (const one of [quiet, refused]) {
      await command({ op: "release", slot: one.slot });
      expect(await elementsOf(one)).toEqual([]);
    }
  });

  it("refuses a subnet that the machine uses", async () => {
    await run(["ip", "-n", host, "addr", "add", "10.77.3.1/24", "dev", "lo"]);
    const settings = {
      program: lab.nativeProgram,
      tag: "zzzzzz",
      subnet: "10.77.0.0/16",
      stateDir: join(lab.home, "z"),
    };
    const other = new LineProcess(node(host, "network-service.ts", JSON.stringify(settings)));
    expect(await other.read()).toEqual({
      error: expect.stringMatching(
        /CLOCHE_SUBNET: 10\.77\.0\.0\/16 is in use on this machine \(10\.77\.3\..* on lo\)/,
      ),
    });
    await other.kill();
    await run(["ip", "-n", host, "addr", "del", "10.77.3.1/24", "dev", "lo"]);
  });

  it("chooses one that is free where none is set, another for each service, and the same at the next start", async () => {
    const start = async (name: string, tag: string): Promise<[LineProcess, string]> => {
      const stateDir = join(lab.home, name, "network");
      const settings = {
        program: lab.nativeProgram,
        tag,
        subnet: "",
        stateDir,
        resolver: PUBLIC,
        slotsAhead: 0,
      };
      const other = new LineProcess(node(host, "network-service.ts", JSON.stringify(settings)));
      expect(await other.read()).toEqual({ ready: true });
      const { value } = await other.ask({ op: "subnet" });
      expect(await readFile(join(lab.home, name, "subnet"), "utf8")).toBe(`${String(value)}\n`);
      return [other, String(value)];
    };
    await run(["ip", "-n", host, "addr", "add", "10.231.3.1/24", "dev", "lo"]);
    const tags = ["yyyyy1", "yyyyy2"];
    const both = await Promise.all(tags.map((tag) => start(tag, tag)));
    const subnets = both.map(([, subnet]) => subnet);
    expect(subnets.toSorted()).toEqual(["10.232.0.0/16", "10.233.0.0/16"]);
    // Killed, with its router there; then stopped, with nothing left of it, and the first of all free again.
    await both[1]?.[0].kill();
    let [second, subnet] = await start("yyyyy2", "yyyyy2");
    expect(subnet).toBe(subnets[1]);
    await second.ask({ op: "destroy" });
    await second.end();
    await run(["ip", "-n", host, "addr", "del", "10.231.3.1/24", "dev", "lo"]);
    [second, subnet] = await start("yyyyy2", "yyyyy2");
    expect(subnet).toBe(subnets[1]);
    for (const one of [both[0]?.[0], second]) {
      await one?.ask({ op: "destroy" });
      await one?.end();
    }
  });
});
