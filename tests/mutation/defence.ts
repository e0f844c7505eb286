// One defence, and the one edit that switches it off.

export interface Defence {
  what: string;
  file: string;
  /** Must be in the file exactly once. */
  find: string;
  replace: string;
  project:
    | "unit"
    | "contracts"
    | "host"
    | "e2e"
    | "service"
    | "clients"
    | "guest"
    | "vm"
    | "oci"
    | "faults"
    | "fuzz"
    | "deploy";
  test: string;
  /** Part of the test's name; default: the whole file. */
  named?: string;
  /** Needs sandboxes or a service: `npm run mutate-defences -- --all`. */
  heavy?: true;
}
