int main() {}  // what this is compiled with, other tests use: tests/cpp/CMakeLists.txt
