/**
 * Limits how many connections of a listener are open at once, in all and of one address, from before the TLS handshake
 * until the close. A client without requests keeps nobody out: when all places are taken, a new connection gets the
 * place of the connection that has been without a request for longest. An address with all its places gives up one of
 * its own.
 *
 *   new ──▶ in the line ◀──answered──┐
 *              ├── request complete ──▶ busy: keeps its place
 *              └── all places are taken, and it is the first of the line ──▶ closed
 */
import { isIPv6, type Socket } from "node:net";

/** A request under way. */
interface Request {
  isWhole(): boolean;
}

/** Connections without a request, longest first, and connections whose request may not be complete yet. */
type Line = Map<string, Place>;

interface Place {
  close(): void;
  requests: Set<Request>;
  address: Address;
}

interface Address {
  name: string;
  places: number;
  line: Line;
}

export interface PlacesLimits {
  connections: number;
  connectionsPerAddress: number;
}

const isBusy = ({ requests }: Place): boolean => [...requests].some((request) => request.isWhole());

export class ConnectionPlaces {
  readonly #limits: PlacesLimits;
  readonly #places = new Map<string, Place>();
  readonly #line: Line = new Map();
  readonly #addresses = new Map<string, Address>();

  constructor({ connections, connectionsPerAddress }: PlacesLimits) {
    this.#limits = { connections, connectionsPerAddress };
  }

  get size(): number {
    return this.#places.size;
  }

  /** Takes a place for a new connection, if needed by closing another; false: all others have requests. */
  take(key: string, close: () => void, addressName = ""): boolean {
    const { connections, connectionsPerAddress } = this.#limits;
    const own = this.#addresses.get(addressName);
    if (own !== undefined && own.places >= connectionsPerAddress && !this.#closeOne(own.line)) return false;
    if (this.#places.size >= connections && !this.#closeOne(this.#line)) return false;
    const known = this.#addresses.get(addressName);
    const address = known ?? { name: addressName, places: 0, line: new Map() };
    this.#addresses.set(addressName, address);
    address.places += 1;
    const place: Place = { close, requests: new Set(), address };
    this.#places.set(key, place);
    this.#enterLine(key, place);
    return true;
  }

  #closeOne(line: Line): boolean {
    for (const [key, place] of line) {
      if (isBusy(place)) this.#leaveLine(key, place);
      else {
        this.leave(key);
        place.close();
        return true;
      }
    }
    return false;
  }

  #enterLine(key: string, place: Place): void {
    this.#leaveLine(key, place);
    this.#line.set(key, place);
    place.address.line.set(key, place);
  }

  #leaveLine(key: string, place: Place): void {
    this.#line.delete(key);
    place.address.line.delete(key);
  }

  leave(key: string): void {
    const place = this.#places.get(key);
    if (place === undefined) return;
    this.#leaveLine(key, place);
    this.#places.delete(key);
    const { address } = place;
    address.places -= 1;
    if (address.places === 0) this.#addresses.delete(address.name);
  }

  /** The connection keeps its place from when the request is complete until the returned function is called. */
  ask(key: string, isWhole: () => boolean): () => void {
    const place = this.#places.get(key);
    if (place === undefined) return () => undefined;
    const request = { isWhole };
    place.requests.add(request);
    if (isWhole()) this.#leaveLine(key, place);
    return () => {
      if (!place.requests.delete(request) || isBusy(place) || this.#places.get(key) !== place) return;
      this.#enterLine(key, place);
    };
  }
}

type Ends = Pick<Socket, "localAddress" | "localPort" | "remoteAddress" | "remotePort">;

/** The key of a connection, the same for the TCP socket and the TLS socket over it. */
export const connectionKey = ({ localAddress, localPort, remoteAddress, remotePort }: Ends): string =>
  `${localAddress} ${localPort} ${remoteAddress} ${remotePort}`;

const mapped = /^::ffff:(?=\d+\.)/i;
/** Groups of an IPv6 address that name a network; one customer has at least one network. */
const networkGroups = 4;

/** The client's address; of IPv6 its /64 network. */
export function addressOf({ remoteAddress = "" }: Pick<Socket, "remoteAddress">): string {
  const address = remoteAddress.replace(mapped, "");
  if (!isIPv6(address)) return address;
  const [before = "", after] = address.split("::");
  const head = before.split(":").filter(Boolean);
  const tail = after === undefined ? [] : after.split(":").filter(Boolean);
  const zeros = after === undefined ? 0 : 8 - head.length - tail.length;
  return [...head, ...Array<string>(zeros).fill("0"), ...tail].slice(0, networkGroups).join(":");
}
