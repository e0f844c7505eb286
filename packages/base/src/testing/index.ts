export { FakeClock, quiet } from "./fake-clock.ts";
export { type RecordedLine, recordedLog } from "./recorded-log.ts";
