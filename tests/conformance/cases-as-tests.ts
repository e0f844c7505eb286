// Conformance cases as tests of a vitest project with a shared service, through TLS.
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import { type CaseFile, loadCaseFiles } from "./case-file.ts";
import { Session, type TestSandbox } from "./session.ts";

/** Every case of the files given; of all files without. */
export function casesAsTests(files: readonly CaseFile[] = loadCaseFiles()): void {
  const session = new Session(inject("service").target);
  afterAll(() => session.close());

  describe.each(files)("$path", (file) => {
    const needsShared = file.cases.some((one) => (one.sandbox ?? file.sandbox ?? "shared") === "shared");
    let shared: TestSandbox | undefined;
    beforeAll(async () => {
      if (needsShared) shared = await session.createSandbox(file.create);
    });
    afterAll(async () => {
      if (shared) await session.discard(shared.id);
    });

    test.each(file.cases)("$name", async (one) => {
      // Our own service must have all that a case can need: nothing is skipped here.
      expect(session.lacks(one.needs)).toBeUndefined();
      const outcome = session.run(file, one, shared);
      if (one.known_failure === undefined) await outcome;
      else await expect(outcome, `it passes now: remove its known_failure mark`).rejects.toThrow();
    });
  });
}
