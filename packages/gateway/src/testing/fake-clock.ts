export { FakeClock, quiet } from "@cloche/base/testing";
