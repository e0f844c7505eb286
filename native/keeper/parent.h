/* The commands that start a program: `keep` leaves a parent behind; `run` waits for the program's end. */
#ifndef CLOCHE_KEEPER_PARENT_H
#define CLOCHE_KEEPER_PARENT_H

/* Arguments: PID_FILE EXIT_FILE OUT_FILE -- CMD... Answers the exit code. */
int keep(int argc, char **argv);
/* Arguments: OUT_FILE -- CMD... Answers the exit code. */
int run(int argc, char **argv);

#endif
