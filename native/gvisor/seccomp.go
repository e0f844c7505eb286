// Compiles gVisor's seccomp programs into Go sources, as official releases have them: a build of the plain module compiles
// them anew at each start of a sandbox, 20 ms each time. Run in a copy of the module's sources (src/artifacts/runsc-seccomp.ts);
// the rules are that module's own. A configuration that is left out here still works: its program is compiled at the start.
package main

import (
	"fmt"
	"log"
	"os"
	"sort"
	"strings"

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentry "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// Parts of the names of configurations that no sandbox of ours has: of 608 programs 6 are left.
var unused = []string{
	`Platform="kvm`, `Platform="ptrace`, `Platform="slimvm`, "HostNetwork=true",
	"NVProxy=true", "TPUProxy=true", "RDMAProxy=true",
	"UDSOpenEnabled=true", "UDSCreateEnabled=true", "CgoEnabled=true",
}

const (
	emptyList = "programs := make(map[string]precompiledseccomp.Program)\n"
	disabled  = "const PrecompilationDisabledAtBuildTime = true"
	enabled   = "const PrecompilationDisabledAtBuildTime = false"
)

func main() {
	// One rule of systrap's allows a signal to the sentry itself, and its program gets the process ID of whoever compiles it.
	// A sentry is the first process of its PID namespace, so this has to be one too.
	if os.Getpid() != 1 {
		log.Fatal("this has to be the first process of a PID namespace")
	}
	sentry.Wanted = isUsed
	gofer.Wanted = isUsed
	write("runsc/boot/filter/filter_precompiled.go", sentry.PrecompiledPrograms)
	write("runsc/fsgofer/filter/filter_precompiled.go", gofer.PrecompiledPrograms)
}

func isUsed(name string) bool {
	for _, part := range unused {
		if strings.Contains(name, part) {
			return false
		}
	}
	return true
}

func write(path string, compile func() ([]precompiledseccomp.Program, error)) {
	programs, err := compile()
	if err != nil {
		log.Fatalf("%s: %v", path, err)
	}
	// The same sources must give the same bytes.
	sort.Slice(programs, func(i, j int) bool { return programs[i].Name < programs[j].Name })
	registrations := emptyList
	for _, program := range programs {
		registrations += program.Registration("\t", "precompiledseccomp", "programs")
	}
	read, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	source := string(read)
	if len(programs) == 0 || strings.Count(source, emptyList) != 1 || strings.Count(source, disabled) != 1 {
		log.Fatalf("%s is not as expected, or there are no programs for it (%d)", path, len(programs))
	}
	source = strings.Replace(source, emptyList, registrations, 1)
	source = strings.Replace(source, disabled, enabled, 1)
	if err := os.WriteFile(path, []byte(source), 0o644); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %d programs\n", path, len(programs))
}
