/**
 * Classes of processors that can run each other's memory images. A restored program continues with the instructions that it found
 * at its start. So two processors are of one class if vendor, family, model and every flag visible to programs are equal. Flags
 * of the kernel (mitigations, virtualization, counters, power) do not count: they differ between kernels on one processor. An
 * unknown flag counts, because a different class only costs a cold start, but a missing instruction a crash.
 */
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";

/** Flags that no program depends on, as x86 Linux names them; arm64 lists none of this kind. */
const kernelsOwn = new Set(
  // Derived by the kernel, or about timers and frequency.
  (
    "constant_tsc rep_good nopl xtopology nonstop_tsc nonstop_tsc_s3 cpuid extd_apicid tsc_known_freq tsc_reliable " +
    "aperfmperf arat tsc_adjust tsc_deadline_timer art ida est epb pln pts dtherm hwp hwp_notify hwp_act_window hwp_epp " +
    "hwp_pkg_req hfi cpb hw_pstate cppc ibpb_exit_to_user amd_lbr_v2 amd_lbr_pmc_freeze " +
    // Mitigations, and flaws that a processor does not have.
    "pti kaiser ibrs ibpb stibp ibrs_enhanced ssbd virt_ssbd md_clear flush_l1d arch_capabilities retpoline " +
    "retpoline_amd spec_ctrl rsb_ctxsw bhi_ctrl autoibrs no_nested_data_bp lfence_rdtsc null_sel_clr_base " +
    "l1tf cdp_l2 bus_lock_detect split_lock_detect core_capabilities " +
    // Of hosts of virtual machines, or of their guests.
    "hypervisor vmx svm smx ept ept_ad vpid flexpriority tpr_shadow vnmi npt nrip_save svm_lock tsc_scale vmcb_clean " +
    "flushbyasid decodeassists pausefilter pfthreshold avic v_vmsave_vmload vgif x2avic v_spec_ctrl vmmcall skinit sev " +
    "sev_es sev_snp sme debug_swap " +
    // Counters, debugging, resources, machine checks.
    "arch_perfmon pebs bts dtes64 dts ds_cpl pdcm perfctr_core perfctr_nb perfctr_llc perfmon_v2 ibs monitor " +
    "intel_pt rdt_a cat_l3 cat_l2 cdp_l3 mba cqm cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local overflow_recov succor " +
    "smca mce mca bpext topoext osvw wdt tce intel_ppin " +
    // Usable only by the kernel.
    "vme pse pse36 pae mtrr pge pat apic x2apic extapic cr8_legacy sep pcid invpcid smep smap umip acpi ss ht " +
    "cmp_legacy tm tm2 pbe xtpr dca sdbg cid"
  ).split(/\s+/),
);

export interface ReadCpu {
  /** Content of /proc/cpuinfo. */
  cpuinfo: string;
  /** As `process.arch`. */
  arch: string;
}

/** For example `x64-authenticamd-26-2-1f0c93ab`. Processors of equal class restore each other's memory. */
export function cpuClassOf({ cpuinfo, arch }: ReadCpu): string {
  const [first = ""] = cpuinfo.split(/\n\s*\n/);
  const field = (name: string): string =>
    new RegExp(`^${name}\\s*:\\s*(.*)$`, "m").exec(first)?.[1]?.trim() ?? "";
  const flags = field("(?:flags|Features)").split(/\s+/);
  const seen = [...new Set(flags)].filter((flag) => flag !== "" && !kernelsOwn.has(flag)).toSorted();
  const maker = field("vendor_id") || field("CPU implementer");
  const family = field("cpu family") || field("CPU architecture");
  const model = field("model") || field("CPU part");
  const digest = createHash("sha256").update(seen.join(" ")).digest("hex").slice(0, 8);
  const parts = [arch, maker, family, model, digest].map((part) =>
    part.toLowerCase().replaceAll(/[^a-z0-9]/g, ""),
  );
  return parts.filter((part) => part !== "").join("-");
}

/** The class of this computer. */
export const readCpuClass = async (): Promise<string> =>
  cpuClassOf({ cpuinfo: await readFile("/proc/cpuinfo", "utf8"), arch: process.arch });
