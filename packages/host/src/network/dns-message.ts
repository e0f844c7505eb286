/** Header and question of DNS messages (RFC 1035), which is all that a forwarder needs. Pure. */

export interface DnsQuestion {
  readonly id: number;
  /** Lower case, without the final dot; "" is the root. */
  readonly name: string;
  readonly type: number;
  /** Offset after the question section. */
  readonly end: number;
}

const headerBytes = 12;
const nameBytesMax = 255;
const labelBytesMax = 63;
const qr = 0x80;
const aa = 0x04;
const rd = 0x01;
const ra = 0x80;
const rcodeNoError = 0;
export const rcodeServerFailure = 2;
const rcodeNoSuchName = 3;
export const rcodeRefused = 5;
/** An alias (DNAME) leads to a name that is too long. */
const rcodeNameExists = 6;

/** The question of a standard query; undefined for anything else (answers, other opcodes, malformed messages). */
export function parseQuery(message: Buffer): DnsQuestion | undefined {
  if (message.length < headerBytes) return undefined;
  const flags = message.readUInt8(2);
  const isStandardQuery = (flags & qr) === 0 && (flags & 0x78) === 0;
  if (!isStandardQuery || message.readUInt16BE(4) !== 1) return undefined;
  return readQuestion(message);
}

/** Whether `answer` answers `query`: a response of the same id to the same question. */
export function answers(answer: Buffer, query: Buffer): boolean {
  const asked = parseQuery(query);
  if (!asked || answer.length < headerBytes || (answer.readUInt8(2) & qr) === 0) return false;
  if (answer.readUInt16BE(0) !== asked.id) return false;
  // Some servers omit the question in an error.
  if (answer.readUInt16BE(4) === 0) return (answer.readUInt8(3) & 0x0f) !== 0;
  const echoed = readQuestion(answer);
  return echoed !== undefined && echoed.name === asked.name && echoed.type === asked.type;
}

/**
 * Whether the server could not or would not answer, so that another may. Only "no error", "no such name" and the result of an alias are
 * answers. A referral (nothing in it, from a server that is neither responsible nor asks others) is none: libc goes on to the next as well.
 */
export function isServerFailure(answer: Buffer): boolean {
  const rcode = answer.readUInt8(3) & 0x0f;
  if (rcode !== rcodeNoError) return rcode !== rcodeNoSuchName && rcode !== rcodeNameExists;
  const isResponsible = (answer.readUInt8(2) & aa) !== 0;
  const asksOthers = (answer.readUInt8(3) & ra) !== 0;
  const isEmpty = answer.readUInt16BE(6) === 0 && answer.readUInt16BE(10) === 0;
  return isEmpty && !isResponsible && !asksOthers;
}

/** An answer to the query with only `rcode`. */
export function refusal(query: Buffer, rcode: number): Buffer {
  const question = parseQuery(query);
  const answer = Buffer.from(query.subarray(0, question?.end ?? headerBytes));
  answer.writeUInt8(qr | (query.readUInt8(2) & rd), 2);
  answer.writeUInt8(ra | rcode, 3);
  answer.writeUInt16BE(question ? 1 : 0, 4);
  answer.fill(0, 6, headerBytes);
  return answer;
}

export function withId(message: Buffer, id: number): Buffer {
  const copy = Buffer.from(message);
  copy.writeUInt16BE(id, 0);
  return copy;
}

function readQuestion(message: Buffer): DnsQuestion | undefined {
  const labels: string[] = [];
  let at = headerBytes;
  for (let total = 0; ; ) {
    const length = message[at];
    // The first question has no compression pointers.
    if (length === undefined || length > labelBytesMax) return undefined;
    at += 1;
    if (length === 0) break;
    total += length + 1;
    if (total > nameBytesMax || at + length > message.length) return undefined;
    labels.push(message.toString("latin1", at, at + length).toLowerCase());
    at += length;
  }
  if (at + 4 > message.length) return undefined;
  return { id: message.readUInt16BE(0), name: labels.join("."), type: message.readUInt16BE(at), end: at + 4 };
}
