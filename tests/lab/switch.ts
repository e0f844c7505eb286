// The network of a lab: computers of its own on one switch, each a network namespace with an address.
//
//   this machine ──cl-<tag>── .1 ──uplink── switch namespace `cloche-<tag>`, bridge `lab` ──h1, g1, …── eth0 of `cl-<tag>-<node>`
//
// Nodes reach the internet through this machine (masqueraded), and this machine reaches the nodes. All names carry the lab's tag,
// so that the inventory of a home (tests/fixtures/inventory.ts) finds what a killed lab left. What survives the script that made it:
// all of it, until `close`.
import { existsSync, readdirSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import {
  disableForwarding,
  enableForwarding,
  type ForwardingPlace,
} from "../../packages/host/src/network/ip-forward.ts";
import { run } from "../../packages/base/src/commands/run.ts";

const NAMESPACES = "/run/netns";
/** RFC 2544's range for tests between networks: no network that a computer is in has it. A lab takes a /24 of its first half. */
const RANGE = "198.18";
const FIRST_ADDRESS = 10;

export class Switch {
  readonly #tag: string;
  readonly #prefix: string;
  readonly #nodes: readonly string[];

  private constructor(tag: string, prefix: string, nodes: readonly string[]) {
    this.#tag = tag;
    this.#prefix = prefix;
    this.#nodes = nodes;
  }

  /** Makes the network. `tag`: six characters of a-z0-9; `nodes`: short names of a-z0-9. */
  static async open(tag: string, nodes: readonly string[]): Promise<Switch> {
    const network = new Switch(tag, await freePrefix(), nodes);
    try {
      await network.#make();
    } catch (error) {
      await network.close().catch(() => undefined);
      throw error;
    }
    return network;
  }

  /** One that another process made. `prefix`: its `prefix`. */
  static found(tag: string, prefix: string, nodes: readonly string[]): Switch {
    return new Switch(tag, prefix, nodes);
  }

  /** The first three numbers of all addresses, for example "198.18.7". */
  get prefix(): string {
    return this.#prefix;
  }

  address(node: string): string {
    const index = this.#nodes.indexOf(node);
    if (index < 0) throw new Error(`the lab has no node ${node}`);
    return `${this.#prefix}.${FIRST_ADDRESS + index}`;
  }

  /** Words before a command that make it run on the node. Only its network is another: mounts are those of this machine. */
  on(node: string): string[] {
    return ["nsenter", `--net=${join(NAMESPACES, this.#namespace(node))}`, "--"];
  }

  /** Whether packets pass between two nodes. Without: they are dropped unseen, as on a broken wire. Repeatable. */
  async connect(one: string, other: string, passes: boolean): Promise<void> {
    for (const [at, of] of [
      [one, other],
      [other, one],
    ] as const) {
      const element = `element inet lab cut { ${this.address(of)} }`;
      // Added before it is deleted: nft refuses to delete what is not there.
      const commands = [`add ${element}`, ...(passes ? [`delete ${element}`] : [])];
      await run([...(this.on(at) as ["nsenter"]), "nft", "-f", "-"], { input: commands.join("\n") });
    }
  }

  /** All packets pass again. */
  async mend(): Promise<void> {
    for (const node of this.#nodes) {
      await run([...(this.on(node) as ["nsenter"]), "nft", "flush", "set", "inet", "lab", "cut"]);
      await this.plug(node, true);
    }
  }

  /** Pulls the node's plug, or puts it back: nobody reaches it. */
  async plug(node: string, isIn: boolean): Promise<void> {
    await run(["ip", "-n", this.#switch, "link", "set", "dev", node, isIn ? "up" : "down"]);
  }

  /** Removes all of it, whatever is there. */
  async close(): Promise<void> {
    const names = existsSync(NAMESPACES) ? readdirSync(NAMESPACES) : [];
    await run(["ip", "link", "delete", `cl-${this.#tag}`]).catch(() => undefined);
    await nft([`add table inet ${this.#table}`, `delete table inet ${this.#table}`]);
    for (const name of names.filter((one) => one.startsWith(`cl-${this.#tag}-`))) {
      // What a host that was killed there has noted of its own forwarding.
      await rm(forwardingFolder(join(NAMESPACES, name)), { recursive: true, force: true });
      await run(["ip", "netns", "delete", name]);
    }
    if (names.includes(this.#switch)) await run(["ip", "netns", "delete", this.#switch]);
    await disableForwarding(forwarding(), this.#switch);
  }

  async #make(): Promise<void> {
    const uplink = `cl-${this.#tag}`;
    await ipBatch(undefined, [
      `netns add ${this.#switch}`,
      ...this.#nodes.map((node) => `netns add ${this.#namespace(node)}`),
      `link add ${uplink} type veth peer name uplink netns ${this.#switch}`,
      `addr add ${this.#prefix}.1/24 dev ${uplink}`,
      `link set ${uplink} up`,
    ]);
    await ipBatch(this.#switch, [
      "link add lab type bridge",
      "link set lab up",
      "link set uplink master lab",
      "link set uplink up",
      ...this.#nodes.flatMap((node) => [
        `link add name ${node} type veth peer name eth0 netns ${this.#namespace(node)}`,
        `link set dev ${node} master lab`,
        `link set dev ${node} up`,
      ]),
    ]);
    for (const node of this.#nodes) await this.#setUp(node);
    await nft([
      `add table inet ${this.#table}`,
      `add chain inet ${this.#table} translate { type nat hook postrouting priority srcnat; }`,
      `add rule inet ${this.#table} translate ip saddr ${this.#prefix}.0/24 oifname != "${uplink}" masquerade`,
    ]);
    await enableForwarding(forwarding(), this.#switch);
  }

  async #setUp(node: string): Promise<void> {
    await ipBatch(this.#namespace(node), [
      "link set lo up",
      "link set eth0 up",
      `addr add ${this.address(node)}/24 dev eth0`,
      `route add default via ${this.#prefix}.1`,
    ]);
    const rules = [
      "add table inet lab",
      "add set inet lab cut { type ipv4_addr; }",
      "add chain inet lab in { type filter hook input priority -400; }",
      "add chain inet lab out { type filter hook output priority -400; }",
      "add rule inet lab in ip saddr @cut drop",
      "add rule inet lab out ip daddr @cut drop",
    ];
    await run([...(this.on(node) as ["nsenter"]), "nft", "-f", "-"], { input: rules.join("\n") });
  }

  get #switch(): string {
    return `cloche-${this.#tag}`;
  }
  get #table(): string {
    return `cloche_${this.#tag}`;
  }
  #namespace(node: string): string {
    return `cl-${this.#tag}-${node}`;
  }
}

/** Shared with the services that run on this machine: the last one out restores the setting. */
const forwarding = (): ForwardingPlace => ({
  runDir: forwardingFolder("/proc/self/ns/net"),
  routers: async () => readdirSync(NAMESPACES).filter((name) => name.startsWith("cloche-")),
});

const forwardingFolder = (namespace: string): string => `/run/cloche-ip-forward-${statSync(namespace).ino}`;

/** A /24 that no route of this machine meets. */
async function freePrefix(): Promise<string> {
  const { stdout } = await run(["ip", "-j", "-4", "route"]);
  const taken = (JSON.parse(stdout) as { dst: string }[]).map(({ dst }) => dst);
  const start = process.pid % 256;
  for (let step = 0; step < 256; step += 1) {
    const prefix = `${RANGE}.${(start + step) % 256}`;
    if (!taken.some((range) => range.startsWith(`${prefix}.`))) return prefix;
  }
  throw new Error(`every /24 of ${RANGE}.0.0/16 is taken on this machine`);
}

async function ipBatch(namespace: string | undefined, lines: readonly string[]): Promise<void> {
  const where = namespace === undefined ? [] : ["-n", namespace];
  await run(["ip", ...where, "-batch", "-"], { input: `${lines.join("\n")}\n` });
}

async function nft(commands: readonly string[]): Promise<void> {
  await run(["nft", "-f", "-"], { input: commands.join("\n") });
}
