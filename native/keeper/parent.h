// The commands that start a program: with a parent that stays, and to its end.
#ifndef CLOCHE_KEEPER_PARENT_H
#define CLOCHE_KEEPER_PARENT_H

// PID_FILE EXIT_FILE OUT_FILE -- CMD... ; answers the exit code.
int keep(int argc, char **argv);
// OUT_FILE -- CMD... ; answers the exit code.
int run(int argc, char **argv);

#endif
