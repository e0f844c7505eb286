/**
 * Reads the addresses in a DNS answer, and makes an answer from addresses (RFC 1035). Users may run the servers that answer, so
 * everything read is bounded. Pure.
 */
import type { DnsQuestion } from "./dns-message.ts";

export const typeA = 1;
export const typeAaaa = 28;
/** Service bindings, which contain addresses. */
export const typesSvcb = [64, 65];
const typeCname = 5;
const classIn = 1;
const recordsMax = 256;
const aliasesMax = 16;
const pointersMax = 32;
const nameBytesMax = 255;

export interface AddressRecord {
  readonly address: string;
  readonly ttlSeconds: number;
}

interface ResourceRecord {
  readonly owner: string;
  readonly type: number;
  readonly ttlSeconds: number;
  /** Of A: the address. Of CNAME: the name. */
  readonly value: string;
}

/**
 * The IPv4 addresses that `message` gives for `question`, through its aliases, each with the smallest TTL on the way. Leaves out
 * records of other names. Undefined if the message is damaged.
 */
export function addressesIn(message: Buffer, question: DnsQuestion): AddressRecord[] | undefined {
  const records = readRecords(message, question.end);
  if (!records) return undefined;
  let name = question.name;
  let ttlSeconds = Number.POSITIVE_INFINITY;
  for (let hops = 0; hops < aliasesMax; hops++) {
    const alias = records.find(({ owner, type }) => type === typeCname && owner === name);
    if (!alias) break;
    name = alias.value;
    ttlSeconds = Math.min(ttlSeconds, alias.ttlSeconds);
  }
  return records
    .filter(({ owner, type }) => type === typeA && owner === name)
    .map((record) => ({ address: record.value, ttlSeconds: Math.min(ttlSeconds, record.ttlSeconds) }));
}

export const isTruncated = (message: Buffer): boolean => (message.readUInt8(2) & 0x02) !== 0;
export const rcodeOf = (message: Buffer): number => message.readUInt8(3) & 0x0f;

/** Answers `query` with exactly these addresses. With none: an empty answer (NOERROR, or `rcode`). */
export function answerOf(
  query: Buffer,
  question: DnsQuestion,
  addresses: readonly AddressRecord[],
  { rcode = 0, truncated = false } = {},
): Buffer {
  const head = Buffer.from(query.subarray(0, question.end));
  head.writeUInt8(0x80 | (truncated ? 0x02 : 0) | (query.readUInt8(2) & 0x01), 2);
  head.writeUInt8(0x80 | rcode, 3);
  head.writeUInt16BE(1, 4);
  head.writeUInt16BE(addresses.length, 6);
  head.writeUInt32BE(0, 8);
  const records = addresses.map(({ address, ttlSeconds }) => {
    const record = Buffer.alloc(16);
    record.writeUInt16BE(0xc00c, 0); // the name of the question
    record.writeUInt16BE(typeA, 2);
    record.writeUInt16BE(classIn, 4);
    record.writeUInt32BE(ttlSeconds, 6);
    record.writeUInt16BE(4, 10);
    for (const [index, part] of address.split(".").entries()) record.writeUInt8(Number(part), 12 + index);
    return record;
  });
  return Buffer.concat([head, ...records]);
}

function readRecords(message: Buffer, from: number): ResourceRecord[] | undefined {
  const count = Math.min(message.readUInt16BE(6), recordsMax);
  const records: ResourceRecord[] = [];
  let at = from;
  for (let index = 0; index < count; index++) {
    const owner = readName(message, at);
    if (!owner || owner.end + 10 > message.length) return undefined;
    const type = message.readUInt16BE(owner.end);
    const isInternet = message.readUInt16BE(owner.end + 2) === classIn;
    const ttl = message.readUInt32BE(owner.end + 4);
    // RFC 2181: a TTL with the highest bit set is zero.
    const ttlSeconds = ttl > 0x7fff_ffff ? 0 : ttl;
    const length = message.readUInt16BE(owner.end + 8);
    const data = owner.end + 10;
    at = data + length;
    if (at > message.length) return undefined;
    if (!isInternet) continue;
    if (type === typeA && length === 4)
      records.push({
        owner: owner.name,
        type,
        ttlSeconds,
        value: [...message.subarray(data, at)].join("."),
      });
    if (type === typeCname) {
      const alias = readName(message, data);
      if (!alias) return undefined;
      records.push({ owner: owner.name, type, ttlSeconds, value: alias.name });
    }
  }
  return records;
}

/** Reads a name: lower case, without a final dot. `end`: offset after it. */
function readName(message: Buffer, from: number): { name: string; end: number } | undefined {
  const labels: string[] = [];
  let at = from;
  let end: number | undefined;
  for (let pointers = 0, total = 0; ; ) {
    const length = message[at];
    if (length === undefined) return undefined;
    if (length >= 0xc0) {
      if (at + 2 > message.length || (pointers += 1) > pointersMax) return undefined;
      end ??= at + 2;
      at = message.readUInt16BE(at) & 0x3fff;
      continue;
    }
    if (length > 63) return undefined;
    at += 1;
    if (length === 0) return { name: labels.join("."), end: end ?? at };
    total += length + 1;
    if (total > nameBytesMax || at + length > message.length) return undefined;
    labels.push(message.toString("latin1", at, at + length).toLowerCase());
    at += length;
  }
}
