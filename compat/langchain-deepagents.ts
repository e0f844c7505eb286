/** LangChain's standard tests of a Deep Agents backend, on adapters/python/deepagents. */
import { pythonAdapter } from "./python-adapter.ts";
import type { Suite } from "./suite.ts";

export const langchainDeepagents: Suite = {
  name: "langchain-deepagents",
  pin: "langchain-tests 1.1.9",
  part: "sandboxes, with deepagents 0.7.32",
  out: {
    "deepagents 0.7 answers absolute paths; the tests expect those of before": [
      "test_glob",
      "test_glob_basic_pattern",
      "test_glob_with_directories",
      "test_glob_hidden_files_explicitly",
      "test_glob_with_character_class",
      "test_glob_with_question_mark",
    ],
    "deepagents 0.7 overwrites; the tests expect a refusal": ["test_write_existing_file_fails"],
  },
  run: pythonAdapter("tests/test_deepagents.py"),
};
