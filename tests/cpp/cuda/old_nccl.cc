// An NCCL that is too old, under NCCL's own name, as a framework may have loaded it.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 21'703;
  return 0;
}
