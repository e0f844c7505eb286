/**
 * One host, as a gateway reaches it: the connection, the calls over it, and the view of its machines. In a cluster this
 * class follows the host's row: a new address needs a new connection, a new generation a new stream of machines. Known
 * machines are kept until the new listing is complete.
 */
import type { Clock, Log } from "@cloche/base";
import type { HostRecord } from "../database/hosts.ts";
import { HostCalls, type HostClient } from "./host-calls.ts";
import { type MachineListener, MachineView } from "./machine-view.ts";

export interface HostConnection {
  client: HostClient;
  close(): void;
}

/** Connects to a host of a cluster; nothing is sent before the first call. `address`: host:port. */
export type HostConnector = (host: { id: string; address: string }) => HostConnection;

export interface FleetHostDependencies {
  clock: Clock;
  log: Log;
  /** Resolves when the rows of the hosts were read again. */
  refresh: () => Promise<void>;
}

export class FleetHost {
  readonly id: string;
  readonly calls: HostCalls;
  readonly view: MachineView;
  #connection: HostConnection;
  #row: HostRecord | undefined;

  /** `row`: for a host in a cluster only. */
  constructor(id: string, connection: HostConnection, needs: FleetHostDependencies, row?: HostRecord) {
    this.id = id;
    this.#connection = connection;
    this.#row = row;
    const clientOf = (): HostClient => this.#connection.client;
    const fence = { generation: () => this.#row?.generation ?? 0, refused: needs.refresh };
    this.calls = new HostCalls(clientOf, needs.clock, row && fence);
    this.view = new MachineView(this.calls, needs.clock, needs.log);
  }

  /** The host's row as last read; undefined: the host is in this process. */
  get row(): HostRecord | undefined {
    return this.#row;
  }

  start(listener: MachineListener): void {
    this.view.start(listener);
  }

  /** Takes the host's new row; connects or streams anew if needed. */
  follow(row: HostRecord, connect: HostConnector): void {
    const before = this.#row;
    this.#row = row;
    const isMoved = before?.address !== row.address;
    if (isMoved) {
      this.#connection.close();
      this.#connection = connect({ id: this.id, address: row.address });
    }
    if (isMoved || before.generation !== row.generation) this.view.reconnect();
  }

  async close(): Promise<void> {
    await this.view.close();
    this.#connection.close();
  }
}
