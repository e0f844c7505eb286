// Every conformance case against the running service, through TLS.
import { casesAsTests } from "../conformance/cases-as-tests.ts";

casesAsTests();
