// ComputeSDK's own suite of a provider; compat/computesdk.ts runs it among upstream's packages, where @computesdk/test-utils is.
import { runProviderTestSuite } from "@computesdk/test-utils";
import { cloche } from "../src/index.ts";

runProviderTestSuite({
  name: "cloche",
  provider: cloche({}),
  supportsFilesystem: true,
  supportsStreaming: true,
  ports: [3000, 8080],
});
