/** The identity of a part of the installation: role and id, as the only URI of its certificate, `cloche://host/h-1`. */
import type { TLSSocket } from "node:tls";

export const roles = ["gateway", "edge", "host"] as const;
export type Role = (typeof roles)[number];

export interface Identity {
  role: Role;
  id: string;
}

const idPattern = /^[a-z0-9][a-z0-9-]{0,62}$/;
const uriPattern = /^URI:cloche:\/\/([a-z]+)\/([a-z0-9-]+)$/;

/** Throws for a role or an id that no certificate may carry. */
export function uriOf({ role, id }: Identity): string {
  if (!isRole(role)) throw new Error(`role must be one of ${roles.join(", ")}`);
  if (!idPattern.test(id)) throw new Error("id must be 1 to 63 of a-z, 0-9 and -, and not begin with -");
  return `cloche://${role}/${id}`;
}

/** The identity in the certificate that the other side proved; undefined: it has no certificate of ours. */
export function identityOf(socket: TLSSocket): Identity | undefined {
  if (!socket.authorized) return undefined;
  return identityIn(socket.getPeerCertificate().subjectaltname);
}

/** `names`: as Node prints them. A certificate of ours has exactly one name. */
export function identityIn(names: string | undefined): Identity | undefined {
  const [, role, id] = uriPattern.exec(names ?? "") ?? [];
  if (role === undefined || id === undefined || !isRole(role) || !idPattern.test(id)) return undefined;
  return { role, id };
}

export const isRole = (text: string): text is Role => (roles as readonly string[]).includes(text);
