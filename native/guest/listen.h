/* `cloche-guest listen PORT -- PROGRAM…`: executes PROGRAM with a socket that listens on PORT as descriptor 3. */
#ifndef CLOCHE_LISTEN_H
#define CLOCHE_LISTEN_H

int listen_and_run(int argc, char **argv);

#endif
