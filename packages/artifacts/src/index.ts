export { ensureHostPackages } from "./host-packages.ts";
export {
  type AgentBuild,
  buildArtifacts,
  checkForUpdates,
  type HostArtifacts,
  type HostArtifactsOptions,
  makeUpdates,
  obtainHostArtifacts,
} from "./host-artifacts.ts";
export { obtainKeeper } from "./programs/programs.ts";
export { agentClock, agentDir, type AgentRoot, listenerFd } from "./rootfs/agent-root.ts";
export type { BaseImage } from "./rootfs/base-image.ts";
export { sandboxResolver } from "./rootfs/base-settings.ts";
export { type Pruned, pruneArtifacts } from "./store/prune.ts";
export { stayInUse } from "./store/store.ts";
export type { ArtifactState } from "./update.ts";
export { guestNetwork } from "./vm/guest-network.ts";
export { type VmArch, vmArch } from "./vm/vm-arch.ts";
export { obtainVmFirstRoot, probeRoot, type VmFirstRoot } from "./vm/vm-first-root.ts";
export { obtainVmKernel, type VmKernel } from "./vm/vm-kernel.ts";
export { obtainVmSystemImage, type VmSystemImage } from "./vm/vm-system-image.ts";
export { obtainVmTools, type VmTools } from "./vm/vm-tools.ts";
