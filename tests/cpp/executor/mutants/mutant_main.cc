// mutant_NAME SEEDS: 0 if the schedules notice the fault within so many seeds. A mutant may also crash or run for ever,
// so it lives in a child process, and that counts as noticed.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "executor/check.hpp"

int main(int argc, char** argv) {
  const std::uint64_t seeds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 500;
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    const auto found = casync::test::verify_seeds(0, seeds, 1).failures;
    if (!found.empty()) std::cout << found.front() << std::endl;
    _exit(found.empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    std::cout << "not noticed in " << seeds << " schedules\n";
    return 1;
  }
  std::cout << "noticed" << (WIFSIGNALED(status) ? " (it crashed)" : "") << '\n';
  return 0;
}
