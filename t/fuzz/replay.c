
/*
 * Feeds files to a fuzz target that is built without libFuzzer.
 */


#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


#define INPUT_MAX  (1024 * 1024)


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static int replay(const char *name, uint8_t *buf);


int
main(int argc, char **argv)
{
    int       i, rc;
    uint8_t  *buf;

    buf = malloc(INPUT_MAX);
    if (buf == NULL) {
        perror("malloc");
        return 1;
    }

    rc = 0;

    for (i = 1; i < argc && rc == 0; i++) {
        rc = replay(argv[i], buf);
    }

    free(buf);

    if (rc == 0) {
        printf("%d inputs replayed\n", argc - 1);
    }

    return rc;
}


/* the target gets memory of just the input's length */

static int
replay(const char *name, uint8_t *buf)
{
    FILE     *f;
    size_t    size;
    uint8_t  *input;

    f = fopen(name, "rb");
    if (f == NULL) {
        perror(name);
        return 1;
    }

    size = fread(buf, 1, INPUT_MAX, f);

    if (ferror(f)) {
        perror(name);
        fclose(f);
        return 1;
    }

    fclose(f);

    input = malloc(size ? size : 1);
    if (input == NULL) {
        perror("malloc");
        return 1;
    }

    memcpy(input, buf, size);

    /* before the call, so that a crash tells its input */

    fprintf(stderr, "%s\n", name);
    (void) LLVMFuzzerTestOneInput(input, size);

    free(input);

    return 0;
}
