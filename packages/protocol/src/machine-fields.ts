/** Fields of a machine that the records of gateways and hosts, and the messages between them, have under the same names. */
export interface MachineFields {
  teamId: string;
  name: string;
  runtime: string;
  template: string;
  cpus: number;
  memoryMb: number;
  diskMb: number;
  env: Record<string, string>;
  idleSuspendSeconds: number;
}

/** Only these fields of a record or message. */
export function machineFields(from: MachineFields): MachineFields {
  const { teamId, name, runtime, template, cpus, memoryMb, diskMb, env, idleSuspendSeconds } = from;
  return { teamId, name, runtime, template, cpus, memoryMb, diskMb, env, idleSuspendSeconds };
}
