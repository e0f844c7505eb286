// The conformance cases that must hold on a virtual machine in every run: each is about what the machine, its kernel, its disk or
// its memory does, and no other test of a virtual machine is about it. Requests and their refusals are the same agent's and gateway's
// on any runtime; files are the guest part's and files.test.ts's, suspends and forks memory.test.ts's and tests/host/qemu.test.ts's.
// All cases on virtual machines: `npm test -- vm-all conformance`.
import { type CaseFile, loadCaseFiles } from "../conformance/case-file.ts";
import { casesAsTests } from "../conformance/cases-as-tests.ts";

const chosen: Record<string, readonly string[]> = {
  "dataplane/exec.yaml": [
    "a command runs and answers with every field",
    "another user by name and by number",
    "a timeout kills its own tree and nothing else",
    "many commands at once each get their own output",
  ],
  "dataplane/services.yaml": [
    "stop ends the whole process tree, by force where it must",
    "a service that was killed is started again where it asks for it",
  ],
  "dataplane/checkpoints.yaml": [
    "restore rewinds files and store in place, token and id stay",
    "restore brings the services of that time back, needs first, and says so",
  ],
  "gateway/metrics.yaml": ["a sandbox says what it uses and has used, also while it is suspended"],
  "gateway/lifecycle.yaml": [
    "a fork with a count makes clones of one instant, of a running and of a suspended sandbox",
    "a suspend without memory keeps the disk, and the resume starts cold with the services that ran",
  ],
};

/** Throws when a name is no case's: a case that was renamed must not drop out. */
function filesOf(names: Record<string, readonly string[]>): CaseFile[] {
  const all = loadCaseFiles();
  return Object.entries(names).map(([path, wanted]) => {
    const file = all.find((one) => one.path === path);
    const cases = wanted.map((name) => file?.cases.find((one) => one.name === name));
    const missing = wanted.filter((_, index) => cases[index] === undefined);
    if (file === undefined || missing.length > 0)
      throw new Error(`${path} has no case named ${missing.map((name) => JSON.stringify(name)).join(", ")}`);
    return { ...file, cases: cases.filter((one) => one !== undefined) };
  });
}

casesAsTests(filesOf(chosen));
