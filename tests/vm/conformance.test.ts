// The conformance cases that must hold on a virtual machine in every run: each is about what the machine, its kernel, its disk or
// its memory does. The others are about requests and their refusals, which the same agent and gateway answer on any runtime; all
// of them on virtual machines: `npm test -- vm-all conformance`.
import { type CaseFile, loadCaseFiles } from "../conformance/case-file.ts";
import { casesAsTests } from "../conformance/cases-as-tests.ts";

const chosen: Record<string, readonly string[]> = {
  "dataplane/exec.yaml": [
    "a command runs and answers with every field",
    "it runs as root in root's home with the usual environment",
    "another user by name and by number",
    "death by a signal is 128 and its number",
    "a timeout kills its own tree and nothing else",
    "the answer comes when the command exits, background children live on",
    "a megabyte of output comes whole",
    "many commands at once each get their own output",
  ],
  "dataplane/files.yaml": [
    "a file is written, described and read back",
    "the mode is as given, else kept, else 0644",
    "1048576 bytes are taken, one more is refused and changes nothing",
    "a symlink cannot lead out of the sandbox",
    "move works across file systems",
    "delete removes files, and directories as told",
  ],
  "dataplane/file-changes.yaml": [
    "a file of any size is put, and described as it now is",
    "headers say mode, owner and group, for a put and for a post",
    "an append goes to the end of the file that is there",
    "chmod and chown change one path or a whole tree",
    "copy keeps what a file is, holes too, and a tree only when asked",
    "a user's rights are what an operation has, through links and dots too",
    "a watch tells what changes, ready first, and ends with its directory",
    "a link opens one file for who has no token, and nothing else",
  ],
  "dataplane/store.yaml": [
    "a value of any JSON is set and got",
    "a batch applies all of its operations in order",
    "writers at once never lose an answered write",
  ],
  "dataplane/services.yaml": [
    "a service is defined, started, seen, stopped and deleted",
    "needs are started first, and left running on stop",
    "stop ends the whole process tree, by force where it must",
    "a service that was killed is started again where it asks for it",
  ],
  "dataplane/containers.yaml": [
    "a container runs from an OCI layout on the sandbox's disk, and exec enters it",
  ],
  "dataplane/checkpoints.yaml": [
    "a checkpoint is taken, listed, awaited and deleted",
    "restore rewinds files and store in place, token and id stay",
    "restore brings the services of that time back, needs first, and says so",
    "taking a checkpoint does not stop what runs",
  ],
  "gateway/metrics.yaml": ["a sandbox says what it uses and has used, also while it is suspended"],
  "gateway/lifecycle.yaml": [
    "suspend freezes a sandbox and resume continues it",
    "a fork with a count makes clones of one instant, of a running and of a suspended sandbox",
    "a suspend without memory keeps the disk, and the resume starts cold with the services that ran",
    "a suspended sandbox can be deleted",
    "a fork is a running copy of memory and disk with an identity of its own",
    "a fork and a create start from a checkpoint that is visible",
    "checkpoints belong to the team and outlive their sandbox",
    "auto_resume wakes a suspended sandbox on its first request",
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
