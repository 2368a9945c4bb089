# cmake -DFILE=in -DOUT=out -DFROM=text -DTO=text -P mutate.cmake: FILE with FROM, which stands there exactly once, replaced by TO.
file(READ "${FILE}" content)
string(REPLACE "${FROM}" "" without "${content}")
string(LENGTH "${content}" length)
string(LENGTH "${without}" left)
string(LENGTH "${FROM}" size)
math(EXPR removed "${length} - ${left}")
if(NOT removed EQUAL size)
  message(FATAL_ERROR "${FILE} has changed: what this mutant replaces must stand there exactly once:\n${FROM}\n"
                      "State the mutant anew in tests/cpp/executor/mutants/CMakeLists.txt.")
endif()
string(REPLACE "${FROM}" "${TO}" content "${content}")
file(WRITE "${OUT}" "${content}")
